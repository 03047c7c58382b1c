//! Space that the live tree and snapshots use, as the daemon tells it and as people read it.

use pando_engine::OwnerUsage;
use pando_fs::{FileSystem, Usage};
use serde_json::{Value, json};

use crate::output::shown;
use crate::size::human;
use crate::snapshots;

/// Counts, as of the last checkpoint or of a `fresh` one. An error is the end of a sentence. Waits for the device.
pub fn answer(fs: &FileSystem, fresh: bool) -> Result<Value, String> {
    fs.usage(fresh).map(|usage| to_json(&usage)).map_err(|error| error.to_string())
}

fn to_json(usage: &Usage) -> Value {
    let Usage { live, snapshots, unnamed, shared, unowned, used } = usage;
    let both = |owner: &OwnerUsage| json!({ "referenced": owner.referenced, "exclusive": owner.exclusive });
    let of_snapshots = snapshots.iter().map(|(snapshot, owner)| {
        let mut line = snapshots::listed(snapshot);
        line.insert("referenced".to_owned(), json!(owner.referenced));
        line.insert("exclusive".to_owned(), json!(owner.exclusive));
        Value::from(line)
    });
    json!({
        "live": both(live),
        "snapshots": of_snapshots.collect::<Vec<_>>(),
        "unnamed_snapshots": both(unnamed),
        "shared": shared,
        "reclaimable": unowned,
        "used": used,
    })
}

/// What people are told: of the volume, and of each snapshot.
pub fn lines(usage: &Value) -> Vec<(&'static str, String)> {
    let bytes = |value: &Value| human(value.as_u64().unwrap_or_default());
    let both = |owner: &Value| {
        format!("{} referenced, {} exclusive", bytes(&owner["referenced"]), bytes(&owner["exclusive"]))
    };
    let all = format!(
        "{}, of which {} is shared and {} to be reclaimed",
        bytes(&usage["used"]),
        bytes(&usage["shared"]),
        bytes(&usage["reclaimable"])
    );
    let snapshots = usage["snapshots"].as_array().into_iter().flatten();
    let snapshots = snapshots.map(|snapshot| {
        let name = shown(snapshot["name"].as_str().unwrap_or_default().as_bytes());
        ("Snapshot", format!("{name}: {}", both(snapshot)))
    });
    // Seldom there is any.
    let unnamed = &usage["unnamed_snapshots"];
    let is_there = unnamed["referenced"].as_u64().is_some_and(|bytes| bytes > 0);
    let unnamed =
        is_there.then(|| ("Snapshots", format!("being received, sent or mounted: {}", both(unnamed))));
    [("In nodes", all), ("Live tree", both(&usage["live"]))]
        .into_iter()
        .chain(snapshots)
        .chain(unnamed)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_without_a_name_have_a_line_if_there_are_any() {
        let last = |unnamed| {
            let lines = lines(&to_json(&Usage { unnamed, ..Usage::default() }));
            lines.last().map(|(of, bytes)| format!("{of}: {bytes}"))
        };
        assert_eq!(
            last(OwnerUsage { referenced: 8192, exclusive: 4096 }).as_deref(),
            Some("Snapshots: being received, sent or mounted: 8.0K referenced, 4.0K exclusive")
        );
        assert_eq!(last(OwnerUsage::default()).as_deref(), Some("Live tree: 0 referenced, 0 exclusive"));
    }
}
