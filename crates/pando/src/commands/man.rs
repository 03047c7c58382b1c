//! `pando man`: the manual pages, made from the same text as `--help`.

use std::path::PathBuf;
use std::{fs, io};

use clap::{Args, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::cli::Cli;
use crate::failure::{Failure, Result, Status, io_text};
use crate::volume::name;

const ABOUT: &str = "\
Writes the manual pages of pando and all its commands to a directory, as pando.8, pando-format.8 and so on.";

const EXAMPLES: &str = "\
Examples:
  pando man /usr/local/share/man/man8";

/// Arguments of `pando man`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct ManArgs {
    /// The directory for the pages, such as /usr/local/share/man/man8; it is made if it is not there.
    directory: PathBuf,
}

/// Runs `pando man`.
pub fn run(args: &ManArgs) -> Result<Status> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot write manual pages to {}: {}", name(&args.directory), io_text(&error)))
    };
    fs::create_dir_all(&args.directory).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![&command];
    let mut next = 0;
    while let Some(page) = pages.get(next) {
        pages.extend(page.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()));
        next += 1;
    }
    for page in pages {
        let source = concat!("pando ", env!("CARGO_PKG_VERSION"));
        let man = Man::new(page.clone()).section("8").source(source).manual("PandoFS");
        let text = render(page, &man).map_err(failed)?;
        fs::write(args.directory.join(man.get_filename()), text).map_err(failed)?;
    }
    Ok(Status::Success)
}

/// A page in the customary order, with the text behind the options as sections of its own.
fn render(command: &clap::Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let more = command.get_after_long_help().or(command.get_after_help());
    let more = more.map(ToString::to_string).unwrap_or_default();
    sections(&more).to_writer(&mut text)?;
    if command.get_name() != "pando" {
        let mut roff = Roff::new();
        roff.control("SH", ["EXIT STATUS"]).text([roman(exit_status(command.get_name()))]);
        roff.control("SH", ["SEE ALSO"]).text([roman("pando(8)")]);
        roff.to_writer(&mut text)?;
    }
    Ok(text)
}

/// Text such as `Examples:`, followed by indented lines, as sections whose lines stay as they are.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for line in text.lines() {
        match line.strip_suffix(':') {
            Some(heading) if !line.starts_with(' ') => {
                roff.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
            }
            _ if line.is_empty() => {
                roff.control("fi", []);
            }
            _ => {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    roff.control("fi", []);
    roff
}

fn exit_status(command: &str) -> &'static str {
    match command {
        "check" => {
            "0 if the volume is clean; 1 if problems were found and listed; 2 if the check could not run to its end, or the command line was \
             wrong; 141 if who reads standard output has closed it."
        }
        "mount" | "umount" => {
            "0 if all was done; 1 if something failed, and was named on standard error; 2 if the command line was wrong. As the helper that \
             mount(8) or umount(8) calls, mount.fuse.pando or umount.fuse.pando: 0 if all was done; 1 if the command line or an option was \
             wrong; 32 if the mount or the unmount failed."
        }
        _ => {
            "0 if all was done; 1 if something failed, and was named on standard error; 2 if the command line was wrong; 141 if who reads \
             standard output has closed it."
        }
    }
}
