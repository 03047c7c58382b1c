//! A buffer against a list of the messages that came in.

use bytes::Bytes;
use pando_format::edge::Xf;
use pando_format::{Bound, Change, Goto, KeyRange, Msn, NodeId, Pending};
use proptest::prelude::*;

use super::message_buffer::{MessageBuffer, Messages};

#[derive(Debug, Clone)]
enum Message {
    Keyed(Bytes, Pending),
    Range(KeyRange),
}

fn key() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xff)], 0..4)
        .prop_map(Bytes::from)
}

fn bound() -> impl Strategy<Value = Bound> {
    (key(), any::<bool>()).prop_map(|(key, after)| if after { Bound::after(key) } else { Bound::before(key) })
}

fn message() -> impl Strategy<Value = Message> {
    let value = proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from);
    let change = (0u32..4, value.clone()).prop_map(|(offset, bytes)| Change::Patch { offset, bytes });
    let pending = prop_oneof![
        value.prop_map(Pending::Put),
        Just(Pending::Delete),
        change.prop_map(|change| Pending::Changes(vec![change])),
    ];
    prop_oneof![
        4 => (key(), pending).prop_map(|(key, pending)| Message::Keyed(key, pending)),
        1 => (bound(), bound()).prop_map(|(a, b)| Message::Range(KeyRange::new(a.clone().min(b.clone()), a.max(b)))),
    ]
}

/// What a key's value becomes, message by message.
fn apply_all(messages: &[Message], key: &Bytes, old: Option<Bytes>) -> Option<Bytes> {
    messages.iter().fold(old, |value, message| match message {
        Message::Keyed(other, pending) if other == key => pending.apply(value),
        Message::Range(range) if range.contains(key) => None,
        _ => value,
    })
}

/// What the buffer says that a key's value becomes.
fn apply_buffer(buffer: &MessageBuffer, key: &Bytes, old: Option<Bytes>) -> Option<Bytes> {
    let below = if buffer.deletes(key) { None } else { old };
    buffer.pending(key).map_or(below.clone(), |pending| pending.apply(below.clone()))
}

fn buffer_of(messages: &[Message]) -> MessageBuffer {
    let mut buffer = MessageBuffer::default();
    for (lsn, message) in (1..).zip(messages) {
        let msn = Msn { lsn, sub: 0 };
        match message.clone() {
            Message::Keyed(key, pending) => buffer.push(key, msn, pending),
            Message::Range(range) => drop(buffer.push_range(range, msn)),
        }
        buffer.check_invariants();
    }
    buffer
}

proptest! {
    #[test]
    fn a_buffer_does_what_its_messages_do(messages in proptest::collection::vec(message(), 0..24), probe in key()) {
        let buffer = buffer_of(&messages);
        for old in [None, Some(Bytes::from_static(b"old value"))] {
            prop_assert_eq!(
                apply_buffer(&buffer, &probe, old.clone()),
                apply_all(&messages, &probe, old)
            );
        }
    }

    #[test]
    fn the_halves_of_a_buffer_do_what_the_whole_did(
        messages in proptest::collection::vec(message(), 0..24), border in bound(), probe in key(),
    ) {
        let old = Some(Bytes::from_static(b"old value"));
        let mut left = buffer_of(&messages);
        let right = left.split_off(&border);
        left.check_invariants();
        right.check_invariants();
        let half = if border.is_above(&probe) { &left } else { &right };
        prop_assert_eq!(apply_buffer(half, &probe, old.clone()), apply_all(&messages, &probe, old.clone()));
        left.append(right, &border);
        left.check_invariants();
        prop_assert_eq!(apply_buffer(&left, &probe, old.clone()), apply_all(&messages, &probe, old));
    }

    #[test]
    fn what_a_buffer_has_inside_a_range_is_what_two_cuts_leave(
        messages in proptest::collection::vec(message(), 0..24), goto in (bound(), bound()), a in bound(), b in bound(),
    ) {
        let range = |a: Bound, b: Bound| KeyRange::new(a.clone().min(b.clone()), a.max(b));
        let mut buffer = buffer_of(&messages);
        let goto = range(goto.0, goto.1);
        if !goto.is_empty() {
            buffer.push_goto(goto_of(goto, 1));
        }
        let wanted = range(a, b);
        let mut cut = buffer.clone();
        drop(cut.split_off(&wanted.upper));
        let cut = cut.split_off(&wanted.lower);
        let inside = buffer.clone().inside(&wanted);
        inside.check_invariants();
        prop_assert_eq!(format!("{inside:?}"), format!("{cut:?}"));
        prop_assert!(inside.lies_inside(&wanted));
        prop_assert_eq!(format!("{:?}", buffer.clone().relift(&[], &[])), format!("{buffer:?}"));
        let there = buffer.clone().relift(b"ab", &[]);
        there.check_invariants();
        prop_assert_eq!(there.keyed().count(), buffer.keyed().count());
        prop_assert!(there.keyed().zip(buffer.keyed()).all(|(one, other)| one.0[..] == [b"ab", &other.0[..]].concat()));
    }

    #[test]
    fn messages_in_a_range_are_those_whose_keys_it_contains(
        messages in proptest::collection::vec(message(), 0..24), a in bound(), b in bound(),
    ) {
        let range = KeyRange::new(a.clone().min(b.clone()), a.max(b));
        let buffer = buffer_of(&messages);
        let found: Vec<_> = buffer.keyed_in(&range).map(|(key, _)| key.clone()).collect();
        let expected: Vec<_> =
            buffer.keyed().map(|(key, _, _)| key.clone()).filter(|key| range.contains(key)).collect();
        prop_assert_eq!(found, expected);
    }
}

fn goto_of(range: KeyRange, height: u8) -> Goto {
    let xf = Xf { strip: 0, prepend: Bytes::new(), lower: Bound::least(), upper: Bound::greatest() };
    Goto { range, msn: Msn::default(), target: NodeId(7), height, xf }
}

#[test]
fn a_goto_of_a_damaged_node_that_leads_no_lower_than_its_edges_is_refused() {
    let goto = |height| goto_of(KeyRange::prefix(&b"a"[..]), height);
    let read = |height| MessageBuffer::from_parts(2, Vec::new(), Vec::new(), vec![goto(height)]);
    assert!(read(0).is_some());
    assert!((1..4).all(|height| read(height).is_none()));
}

/// Edges are joined without a look at what waits for them; gotos that overlap could not be written.
#[test]
fn gotos_that_reach_over_the_border_are_cut_where_buffers_are_joined() {
    let range = |lower: &str, upper: &str| {
        KeyRange::new(Bound::before(lower.to_owned()), Bound::before(upper.to_owned()))
    };
    let of = |ranges: &[(&str, &str)]| {
        let gotos = ranges.iter().map(|(lower, upper)| goto_of(range(lower, upper), 0)).collect();
        MessageBuffer::from_parts(2, Vec::new(), Vec::new(), gotos).unwrap()
    };
    for (left, right, joined) in [
        (&[("a", "b"), ("k", "p")][..], &[("n", "q")][..], &[("a", "b"), ("k", "m"), ("n", "q")][..]),
        (&[("a", "b"), ("n", "q")], &[("o", "p")], &[("a", "b"), ("o", "p")]),
        (&[("a", "b")], &[("c", "d"), ("l", "n")], &[("a", "b"), ("m", "n")]),
        (&[("a", "m")], &[("m", "n")], &[("a", "m"), ("m", "n")]),
    ] {
        let mut buffer = of(left);
        buffer.append(of(right), &Bound::before("m"));
        let expected = of(joined);
        let found: Vec<_> = buffer.gotos().iter().map(|goto| goto.range.clone()).collect();
        assert_eq!(found, expected.gotos().iter().map(|goto| goto.range.clone()).collect::<Vec<_>>());
        assert_eq!(buffer.bytes(), expected.bytes());
    }
}

/// A small message that came down to a leaf kept all in memory that was read with it, beside the cache's budget.
#[test]
fn messages_that_were_read_come_down_as_copies() {
    let read = Bytes::from(vec![b'a'; 64]);
    let range = |length: usize| {
        KeyRange::new(Bound::before(read.slice(..length)), Bound::before(read.slice(..length + 1)))
    };
    let change = Change::Patch { offset: 0, bytes: read.slice(20..30) };
    let pending = [Pending::Put(read.slice(10..20)), Pending::Changes(vec![change])];
    let keyed = (2..).zip(pending).map(|(length, pending)| (read.slice(..length), Msn::default(), pending));
    let KeyRange { lower, upper } = range(5);
    let xf = Xf { strip: 1, prepend: read.slice(30..40), lower, upper };
    let goto = Goto { xf, ..goto_of(range(8), 0) };
    let buffer = MessageBuffer::from_parts(2, keyed, vec![(range(6), Msn::default())], vec![goto]).unwrap();
    let mut lower = MessageBuffer::default();
    lower.append(buffer.relift(b"", b"a"), &Bound::least());
    let upper = lower.split_off(&Bound::before("aa"));
    drop(read);
    let mut found = 0;
    let mut is_copy = |bytes: &Bytes| {
        found += 1;
        assert!(bytes.is_unique());
    };
    for half in [lower, upper] {
        let Messages { ranges, gotos, keyed } = half.into_messages();
        for (key, (_, mut pending)) in keyed {
            is_copy(&key);
            pending.bytes_mut().into_iter().for_each(|bytes| is_copy(bytes));
        }
        for range in ranges.iter().map(|(range, _)| range).chain(gotos.iter().map(|goto| &goto.range)) {
            [&range.lower, &range.upper].into_iter().for_each(|bound| is_copy(&bound.bytes));
        }
        for Goto { xf, .. } in &gotos {
            [&xf.prepend, &xf.lower.bytes, &xf.upper.bytes].into_iter().for_each(&mut is_copy);
        }
    }
    assert_eq!(found, 4 + 4 + 3);
}

/// As in a leaf: what is left of a write does not keep all of it.
#[test]
fn what_is_left_of_a_write_is_copied() {
    for (deleted, is_copied) in [(1..64_u8, true), (0..63, true), (1..63, true), (60..64, false)] {
        let written = Bytes::from(vec![7; 64 * 4096]);
        let mut buffer = MessageBuffer::default();
        for block in 0..64 {
            let at = usize::from(block) * 4096;
            let msn = Msn { lsn: 1, sub: 0 };
            buffer.push(Bytes::copy_from_slice(&[block]), msn, Pending::Put(written.slice(at..at + 4096)));
        }
        let range = KeyRange::new(Bound::before(vec![deleted.start]), Bound::before(vec![deleted.end]));
        buffer.push_range(range, Msn { lsn: 2, sub: 0 });
        let messages = buffer.keyed_in(&KeyRange::all());
        assert_eq!(messages.count(), 64 - deleted.len());
        assert_eq!(written.is_unique(), is_copied, "{deleted:?}");
    }
}
