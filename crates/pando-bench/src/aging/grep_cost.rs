//! The cost of a cold grep, per GiB, of a tree and of a fresh copy of it.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

use super::filled;
use crate::command;
use crate::compleat::source_tree::{grep_in, tree_bytes};
use crate::device::{Device, Traffic};
use crate::error::{Error, at};
use crate::report::statistics::median;
use crate::row::Measurement;
use crate::trace::Trace;
use crate::trace::round::LAYOUT_SCORE;
use crate::trace::summary::Layout;
use crate::volume::Volume;

/// Greps of each tree at a step.
const GREPS: RangeInclusive<usize> = 3..=3;
/// The last step is the one that is judged, and small trees are read in so little time that single greps of them differ by a third: there are as many of them
/// as take [`SECONDS`].
const GREPS_AT_THE_END: RangeInclusive<usize> = 9..=41;
const SECONDS: f64 = 4.0;
const KIB: f64 = 1024.0;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// For loads that make everything themselves.
pub fn nothing(_: &Volume) -> Result<(), Error> {
    Ok(())
}

/// What a scan of a tree costs.
struct Cost {
    s_per_gib: f64,
    /// Mean length of a request to the device.
    kib_per_read: f64,
    /// What was read, over the bytes of the tree's files: unlike times the same for the same layout.
    read_per_byte: f64,
    /// Layout score of its reads, in a run that is counted.
    layout: Option<f64>,
}

/// A tree, and what greps of it took so far.
struct Scanned<'a> {
    volume: &'a Volume,
    tree: &'a Path,
    seconds: Vec<f64>,
    lengths_kib: Vec<f64>,
    read_bytes: Vec<f64>,
    layout: Option<f64>,
}

impl<'a> Scanned<'a> {
    fn new(volume: &'a Volume, tree: &'a Path) -> Self {
        Scanned {
            volume,
            tree,
            seconds: Vec::new(),
            lengths_kib: Vec::new(),
            read_bytes: Vec::new(),
            layout: None,
        }
    }

    /// One grep with cold caches.
    fn grep(&mut self) -> Result<(), Error> {
        let volume = self.volume;
        let device = volume.device.as_deref().unwrap_or(Path::new(""));
        volume.let_go()?;
        let traced = volume.options.trace && self.layout.is_none();
        let trace = traced.then(|| Trace::start(&volume.options.directory, "grep", device)).transpose()?;
        // A mount may read ahead what the grep would have read.
        let before = Traffic::of(device);
        volume.mount_cold()?;
        let begin = Instant::now();
        grep_in(self.tree)?;
        self.seconds.push(begin.elapsed().as_secs_f64());
        let done = Traffic::of(device).since(&before);
        self.read_bytes.push(done.read_bytes as f64);
        self.lengths_kib.push(done.read_bytes as f64 / KIB / (done.reads.max(1) as f64));
        if let Some(trace) = trace {
            self.layout = Layout::of(&trace.finish()?).map(|layout| layout.by_block);
        }
        Ok(())
    }

    fn cost(&self) -> Result<Cost, Error> {
        let bytes = tree_bytes(self.tree)? as f64;
        Ok(Cost {
            s_per_gib: median(&self.seconds) / (bytes / GIB),
            kib_per_read: median(&self.lengths_kib),
            read_per_byte: median(&self.read_bytes) / bytes,
            layout: self.layout,
        })
    }
}

/// Costs of the tree and of a copy of it on a volume of its own, greps of both by turns.
fn costs(volume: &Volume, tree: &Path, greps: &RangeInclusive<usize>) -> Result<(Cost, Cost), Error> {
    let (_device, fresh) = fresh(volume)?;
    let compared = || {
        // Under its own name, so that on either volume the same comes before and behind it.
        let copy = fresh.root.join(tree.file_name().unwrap_or_default());
        // What a volume costs by being full is no aging of this tree.
        let filled = [volume, &fresh].map(filled::directory);
        if filled[0].exists() {
            copy_tree(&filled[0], &filled[1])?;
        }
        copy_tree(tree, &copy)?;
        let (mut aged, mut copied) = (Scanned::new(volume, tree), Scanned::new(&fresh, &copy));
        for number in 0..*greps.end() {
            if number >= *greps.start() && aged.seconds.iter().sum::<f64>() >= SECONDS {
                break;
            }
            // Whatever comes first or second has something of it as often.
            let mut order = [&mut aged, &mut copied];
            if number % 2 == 1 {
                order.reverse();
            }
            for scanned in order {
                scanned.grep()?;
            }
        }
        Ok((aged.cost()?, copied.cost()?))
    };
    let compared = compared();
    fresh.umount()?;
    compared
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), Error> {
    let [from, to] = [from, to].map(|path| path.display().to_string());
    command::run(&["cp", "-a", &from, &to]).map(drop)
}

fn fresh(volume: &Volume) -> Result<(Device, Volume), Error> {
    let options = &volume.options;
    let device = Device::over_a_file(options, crate::device::SECOND_IMAGE)?;
    let root = options.directory.join("fresh");
    let (path, image) = (Some(device.path.clone()), device.image.clone());
    let fresh = Volume { device: path, image, root, ..volume.clone() };
    fresh.make()?;
    Ok((device, fresh))
}

/// What an earlier run left.
fn remove(tree: &Path) -> Result<(), Error> {
    if tree.exists() { at("cannot remove", tree, fs::remove_dir_all(tree)) } else { Ok(()) }
}

/// Runs the steps from 0 to `steps`, and looks at the costs after step 0 and after every `every`-th. The tree is new, and
/// goes in the end.
pub fn age(
    volume: &Volume,
    tree: &Path,
    (steps, every): (u64, u64),
    mut step: impl FnMut(u64) -> Result<(), Error>,
) -> Result<Measurement, Error> {
    let mut plots: [Vec<(f64, f64)>; 6] = Default::default();
    let mut layouts: [Vec<(f64, f64)>; 2] = Default::default();
    let mut last = (0.0, 0.0);
    remove(tree)?;
    for number in 0..=steps {
        step(number)?;
        if number % every == 0 {
            let greps = if number == steps { GREPS_AT_THE_END } else { GREPS };
            let (aged, copied) = costs(volume, tree, &greps)?;
            last = (aged.s_per_gib, copied.s_per_gib);
            let values = |cost: &Cost| [cost.s_per_gib, cost.kib_per_read, cost.read_per_byte];
            for (points, value) in plots.iter_mut().zip([values(&aged), values(&copied)].concat()) {
                points.push((number as f64, value));
            }
            for (points, layout) in layouts.iter_mut().zip([aged.layout, copied.layout]) {
                points.extend(layout.map(|score| (number as f64, score)));
            }
        }
    }
    remove(tree)?;
    let (aged, copied) = last;
    let mut measurement = Measurement { values: vec![copied / aged, aged], ..Measurement::default() };
    let names = [
        ("grep cost, aged", "s/GiB"),
        ("length of reads, aged", "KiB"),
        ("read of the device, aged", "bytes/byte"),
        ("grep cost, fresh copy", "s/GiB"),
        ("length of reads, fresh copy", "KiB"),
        ("read of the device, fresh copy", "bytes/byte"),
    ];
    for ((name, unit), points) in names.into_iter().zip(plots) {
        measurement = measurement.with(name, "step", unit, points);
    }
    for (name, points) in ["layout, aged", "layout, fresh copy"].into_iter().zip(layouts) {
        if !points.is_empty() {
            measurement = measurement.with(name, "step", LAYOUT_SCORE, points);
        }
    }
    Ok(measurement)
}
