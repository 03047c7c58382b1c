//! `pando dump`: the structures on a device, readable.
//!
//! Nothing is recovered and nothing is trusted: what cannot be decoded is shown with the reason, and the dump goes on
//! with the next structure it can find.

mod log;
mod nodes;

use std::fmt::Display;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Command};
use pando_device::Access;
use pando_format::Superblock;
use serde_json::{Map, Value, json};

use crate::failure::{Result, Status};
use crate::output::Output;
use crate::raw::{RawError, RawVolume};
use crate::volume::open_device;

const ABOUT: &str = "\
Shows the structures on the device of a volume as they are, without recovering anything: superblocks, block \
table, headers of nodes, and the log from where a recovery would start. Without a choice, all of these are shown. Each \
begins with its byte offset on the device. What is damaged is shown with the reason, and gives exit status 1. Without \
a superblock that is whole both are shown, with the reasons, and nothing else can be.";

const EXAMPLES: &str = "\
Examples:
  pando dump --superblocks disk.img
  pando dump --node 17 --contents disk.img";

/// Arguments of `pando dump`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct DumpArgs {
    /// An image file or a block device that is not mounted.
    path: PathBuf,
    /// Both superblocks.
    #[arg(long)]
    superblocks: bool,
    /// The block table: where each node lies.
    #[arg(long)]
    table: bool,
    /// The headers of all nodes.
    #[arg(long, conflicts_with = "node")]
    nodes: bool,
    /// The header of one node.
    #[arg(long, value_name = "ID")]
    node: Option<u64>,
    /// What is in the nodes that are shown as well: keys, values, messages.
    #[arg(long)]
    contents: bool,
    /// The log, from where a recovery would start.
    #[arg(long)]
    log: bool,
    /// Print a JSON array with one object a structure.
    #[arg(long)]
    json: bool,
}

/// Runs `pando dump`.
pub fn run(args: &DumpArgs) -> Result<Status> {
    let nodes = args.nodes || args.node.is_some();
    let everything = !(args.superblocks || args.table || nodes || args.log);
    if args.contents && !nodes && !everything {
        let mut command = DumpArgs::augment_args(Command::new("pando dump"));
        let why = "--contents is about nodes; give --nodes or --node as well";
        command.error(ErrorKind::MissingRequiredArgument, why).exit();
    }
    // Held to the end: it keeps writers out.
    let _lock = open_device(&args.path, Access::ReadOnly)?;
    let raw = RawVolume::open(&args.path)?;
    let newest = raw.newest_superblock(&args.path);
    let mut dump = Dump {
        raw,
        // Nothing is looked for by one that is not there.
        newest: newest.as_ref().ok().cloned().unwrap_or_default(),
        output: Output::new(),
        json: args.json,
        items: 0,
        table_shown: false,
        damaged: false,
    };
    if args.superblocks || everything || newest.is_err() {
        dump.superblocks()?;
    }
    if let Err(failure) = newest {
        dump.finish()?;
        return Err(failure);
    }
    if args.table || everything {
        dump.table(&mut |_, _, _| Ok(()), true)?;
        dump.table_shown = true;
    }
    if nodes || everything {
        dump.nodes(args.node, args.contents)?;
    }
    if args.log || everything {
        dump.log()?;
    }
    let damaged = dump.damaged;
    dump.finish()?;
    Ok(if damaged { Status::Problems } else { Status::Success })
}

/// A dump on its way.
struct Dump {
    raw: RawVolume,
    newest: Superblock,
    output: Output,
    json: bool,
    items: u64,
    /// Pages of the block table that cannot be read have been told of.
    table_shown: bool,
    damaged: bool,
}

impl Dump {
    fn finish(mut self) -> Result<()> {
        if self.json {
            self.output.line(if self.items == 0 { "[]" } else { "\n]" })?;
        }
        self.output.finish()
    }

    fn superblocks(&mut self) -> Result<()> {
        for (offset, superblock) in self.raw.superblocks() {
            match superblock {
                Ok(superblock) => {
                    let fields = json!({ "checkpoint": superblock.checkpoint, "clean": superblock.clean });
                    self.item("superblock", offset, fields, &superblock)?;
                }
                Err(error) => self.damage("superblock", offset, &error)?,
            }
        }
        Ok(())
    }

    /// Prints a structure: what it is, its byte offset on the device, some fields for programs, and its own text.
    fn item(&mut self, structure: &str, offset: u64, fields: Value, text: &impl Display) -> Result<()> {
        let text = text.to_string();
        if !self.json {
            self.output.bytes(format!("{offset:#014x}  ").as_bytes())?;
            return self.output.line(text.trim_end());
        }
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim).collect();
        let mut object = fields.as_object().cloned().unwrap_or_default();
        object.insert("text".to_owned(), json!(lines));
        self.object(structure, offset, object)
    }

    /// Says that a structure cannot be shown, and why.
    fn damage(&mut self, structure: &str, offset: u64, error: &RawError) -> Result<()> {
        self.damaged = true;
        if !self.json {
            return self.output.line(format!("{offset:#014x}  {structure} cannot be read: {error}"));
        }
        let mut object = Map::new();
        object.insert("error".to_owned(), json!(error.to_string()));
        self.object(structure, offset, object)
    }

    fn object(&mut self, structure: &str, offset: u64, mut object: Map<String, Value>) -> Result<()> {
        object.insert("structure".to_owned(), structure.into());
        object.insert("offset".to_owned(), offset.into());
        self.output.bytes(if self.items == 0 { b"[\n" } else { b",\n" })?;
        self.items += 1;
        self.output.json_value(&Value::from(object))
    }
}
