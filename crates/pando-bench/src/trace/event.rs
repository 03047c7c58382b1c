//! One event of a trace, and its form as text.

const SECTOR: u64 = 512;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Of the kernel's monotonic clock.
    pub time_us: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Bytes from the first on, to its length.
    Read(u64, u64),
    /// The same.
    Write(u64, u64),
    /// Discarded or zeroed: what flash need not keep.
    Discard(u64, u64),
    /// The device's cache was emptied.
    Flush,
    /// A request to a FUSE daemon: number of the connection, number of the request, kind.
    Sent(u64, u64, String),
    /// Its answer: connection, request.
    Answered(u64, u64),
    /// A thread begins to wait for a lock: its number.
    Waits(u64),
    /// A thread goes on, if it waited: its number.
    GoesOn(u64),
    /// A mark of ours.
    Mark(String),
}

impl Event {
    /// One line of a trace: `task-pid [cpu] flags seconds.microseconds: event: fields`. Others are none.
    pub fn parse(line: &str) -> Option<Event> {
        // System calls have a form of their own.
        let names = [
            "block_rq_issue: ",
            "fuse_request_send: ",
            "fuse_request_end: ",
            "tracing_mark_write: ",
            "sys_futex(",
            "sys_futex -> ",
        ];
        let (name, at) = names.into_iter().find_map(|name| Some((name, line.find(&format!(": {name}"))?)))?;
        let mut words = line[..at].split_whitespace().rev();
        let (seconds, micros) = words.next()?.split_once('.')?;
        let time_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let fields = &line[at + name.len() + 2..];
        let what = match name {
            "block_rq_issue: " => block(fields)?,
            "tracing_mark_write: " => What::Mark(fields.trim_end().to_owned()),
            "sys_futex(" => What::Waits(thread(words)?),
            "sys_futex -> " => What::GoesOn(thread(words)?),
            _ => fuse(fields, name == "fuse_request_send: ")?,
        };
        Some(Event { time_us, what })
    }
}

/// The number in `name-27431 [001] .....`, from behind; a name may hold spaces.
fn thread<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<u64> {
    words.nth(2)?.rsplit('-').next()?.parse().ok()
}

/// `7,0 WS 4096 () 2048 + 8 be,0,4 [task]`
fn block(fields: &str) -> Option<What> {
    let mut words = fields.split_whitespace().skip(1);
    let kind = words.next()?;
    let mut words = words.skip_while(|word| !word.ends_with(')')).skip(1);
    let first = words.next()?.parse::<u64>().ok()? * SECTOR;
    let bytes = words.nth(1)?.parse::<u64>().ok()? * SECTOR;
    // An F before the operation asks for a flush ahead of it, which is a request of its own.
    let operation = match kind.strip_prefix('F') {
        Some(rest) if rest.starts_with(['R', 'W', 'D', 'F']) => rest,
        _ => kind,
    };
    match operation.get(..1)? {
        "F" => Some(What::Flush),
        _ if bytes == 0 => None,
        "R" => Some(What::Read(first, bytes)),
        "W" if operation.starts_with("WZ") => Some(What::Discard(first, bytes)),
        "W" => Some(What::Write(first, bytes)),
        // Zeroes without data have no letter of their own in older kernels.
        "D" | "N" => Some(What::Discard(first, bytes)),
        _ => None,
    }
}

/// `connection 45 req 12 opcode 16 (FUSE_WRITE) len 80`
fn fuse(fields: &str, sent: bool) -> Option<What> {
    let words: Vec<&str> = fields.split_whitespace().collect();
    let after =
        |name: &str| words.iter().position(|word| *word == name).and_then(|index| words.get(index + 1));
    let number = |name: &str| after(name)?.parse::<u64>().ok();
    let (connection, request) = (number("connection")?, number("req")?);
    if !sent {
        return Some(What::Answered(connection, request));
    }
    let kind = words.iter().find_map(|word| word.strip_prefix('(')?.strip_suffix(')'));
    let kind = kind.map(|kind| kind.trim_start_matches("FUSE_")).filter(|kind| !kind.starts_with("0x"));
    let kind = kind.or_else(|| after("opcode").copied()).unwrap_or("?");
    Some(What::Sent(connection, request, kind.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(text: &str) -> Option<What> {
        Event::parse(&format!("  a b: c-21541   [001] ..... 13467.037007: {text}")).map(|event| event.what)
    }

    #[test]
    fn block_events_are_read() {
        let event = Event::parse(
            "  mkfs-7 [001] ..... 12.000005: block_rq_issue: 7,0 RA 4096 () 16 + 8 be,0,4 [mkfs]",
        );
        assert_eq!(event, Some(Event { time_us: 12_000_005, what: What::Read(8192, 4096) }));
        assert_eq!(what("block_rq_issue: 7,0 WS 512 () 0 + 1 [x]"), Some(What::Write(0, 512)));
        assert_eq!(what("block_rq_issue: 7,0 FWFS 512 () 0 + 1 [x]"), Some(What::Write(0, 512)));
        assert_eq!(what("block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [k w]"), Some(What::Flush));
        assert_eq!(what("block_rq_issue: 7,0 DS 1024 () 8 + 2 be,0,4 [k]"), Some(What::Discard(4096, 1024)));
        assert_eq!(what("block_rq_issue: 7,0 WZS 0 () 8 + 2 be,0,4 [k]"), Some(What::Discard(4096, 1024)));
        assert_eq!(what("block_rq_issue: 7,0 R 36 (12 00 24) 8 + 2 [k]"), Some(What::Read(4096, 1024)));
        assert_eq!(what("block_rq_issue: 7,0"), None);
        assert_eq!(what("sched_switch: x"), None);
    }

    #[test]
    fn events_of_fuse_and_marks_are_read() {
        let sent = what("fuse_request_send: connection 45 req 12 opcode 16 (FUSE_WRITE) len 80 ");
        assert_eq!(sent, Some(What::Sent(45, 12, "WRITE".to_owned())));
        let sent = what("fuse_request_send: connection 45 req 12 opcode 99 (0x63) len 80 ");
        assert_eq!(sent, Some(What::Sent(45, 12, "99".to_owned())));
        assert_eq!(
            what("fuse_request_end: connection 45 req 12 len 16 error 0"),
            Some(What::Answered(45, 12))
        );
        assert_eq!(what("tracing_mark_write: load\n"), Some(What::Mark("load".to_owned())));
    }

    #[test]
    fn waits_for_locks_are_read() {
        let waits = "sys_futex(uaddr: 0x7f4a4a6a9658, op: 0x80, val: 1, utime: 0, uaddr2: 1, val3: 0)";
        assert_eq!(what(waits), Some(What::Waits(21541)));
        assert_eq!(what("sys_futex -> 0xffffffffffffff92"), Some(What::GoesOn(21541)));
    }
}
