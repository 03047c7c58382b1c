//! `pando completions`: what a shell needs to complete `pando`'s command line.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::cli::Cli;
use crate::failure::{Result, Status};
use crate::output::Output;

const ABOUT: &str = "\
Writes a script to standard output that makes a shell complete the command line of pando.";

const EXAMPLES: &str = "\
Examples:
  pando completions bash > /usr/share/bash-completion/completions/pando
  pando completions zsh > /usr/share/zsh/site-functions/_pando
  pando completions fish > /usr/share/fish/vendor_completions.d/pando.fish";

/// Arguments of `pando completions`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell to write them for.
    shell: Shell,
}

/// Runs `pando completions`.
pub fn run(args: &CompletionsArgs) -> Result<Status> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "pando", &mut script);
    let mut output = Output::new();
    output.bytes(&script)?;
    output.finish()?;
    Ok(Status::Success)
}
