use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), length).prop_map(Bytes::from)
}

/// Few offsets and short lengths, so that fields and patches meet, overlap and miss each other.
fn field() -> impl Strategy<Value = FieldUpdate> {
    let offset = || prop_oneof![Just(0_u16), Just(4), Just(8), 0..24_u16];
    let number = || prop_oneof![0..4_u64, any::<u64>()];
    prop_oneof![
        (offset(), bytes(0..10)).prop_map(|(offset, bytes)| FieldUpdate::Set { offset, bytes }),
        (offset(), number()).prop_map(|(offset, value)| FieldUpdate::Max { offset, value }),
        (offset(), number()).prop_map(|(offset, value)| FieldUpdate::Add { offset, value }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..24_u32, bytes(0..10)).prop_map(|(offset, bytes)| Change::Patch { offset, bytes }),
        1 => (0..30_u32).prop_map(|length| Change::Truncate { length }),
        3 => vec(field(), 0..4).prop_map(|fields| Change::Update { fields }),
    ]
}

/// Changes one on top of the other.
fn sum(changes: Vec<Change>) -> Pending {
    let mut one_by_one = changes.into_iter().map(|change| Pending::Changes(vec![change]));
    let first = one_by_one.next().expect("there is at least one");
    one_by_one.fold(first, |mut sum, change| {
        sum.push(change);
        sum
    })
}

fn pending() -> impl Strategy<Value = Pending> {
    prop_oneof![
        1 => bytes(0..32).prop_map(Pending::Put),
        1 => Just(Pending::Delete),
        6 => vec(change(), 1..4).prop_map(sum),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// However a sequence of messages is cut into groups, each group summed, and the sums settled one after the
    /// other or summed again: the value is that of the messages applied one by one.
    #[test]
    fn settling_in_steps_equals_settling_at_once(
        old in proptest::option::of(bytes(0..32)),
        messages in vec((pending(), any::<bool>()), 1..12),
    ) {
        let one_by_one = messages.iter().fold(old.clone(), |value, (message, _)| message.apply(value));

        let mut groups: Vec<Pending> = Vec::new();
        for (message, joins) in &messages {
            match groups.last_mut() {
                Some(last) if *joins => {
                    last.push(message.clone());
                }
                _ => groups.push(message.clone()),
            }
        }
        let in_steps = groups.iter().fold(old.clone(), |value, group| group.apply(value));
        prop_assert_eq!(&in_steps, &one_by_one);

        let mut sum = groups[0].clone();
        for group in &groups[1..] {
            sum.push(group.clone());
        }
        prop_assert_eq!(&sum.apply(old.clone()), &one_by_one);
    }

    /// A sum means what its changes mean one after the other, tells how it grows, and keeps patches apart.
    #[test]
    fn a_sum_means_its_changes(old in proptest::option::of(bytes(0..32)), changes in vec(change(), 1..24)) {
        let one_by_one = changes.iter().fold(old.clone(), |value, change| change.apply(value));
        prop_assert_eq!(&Pending::Changes(changes.clone()).apply(old.clone()), &one_by_one);

        let mut sum = Pending::Changes(vec![changes[0].clone()]);
        let mut weight = sum.weight() as isize;
        for change in &changes[1..] {
            weight += sum.push(Pending::Changes(vec![change.clone()]));
        }
        prop_assert_eq!(weight, sum.weight() as isize);
        prop_assert_eq!(&sum.apply(old.clone()), &one_by_one);
        let Pending::Changes(changes) = &sum else { panic!("changes to a value that nobody has seen stay changes") };
        prop_assert!(changes.windows(2).all(|pair| match (pair[0].patched(), pair[1].patched()) {
            (Some(lower), Some(upper)) => lower.end < upper.start,
            (Some(_), None) => !matches!(pair[1], Change::Truncate { .. }),
            _ => true,
        }), "{}", sum);
        prop_assert_eq!(Pending::from_changes(changes.clone()), Ok(sum.clone()));
    }

    /// Sums are built from either end: what lies deeper may be summed before or after what lies above it.
    #[test]
    fn sums_associate(old in proptest::option::of(bytes(0..32)), a in pending(), b in pending(), c in pending()) {
        let mut left = a.clone();
        left.push(b.clone());
        left.push(c.clone());
        let mut upper = b;
        upper.push(c);
        let mut right = a;
        right.push(upper);
        prop_assert_eq!(left.apply(old.clone()), right.apply(old));
    }
}

#[test]
fn a_run_of_small_patches_becomes_one() {
    let patch = |offset: u32, bytes: &'static [u8]| {
        Pending::Changes(vec![Change::Patch { offset, bytes: Bytes::from_static(bytes) }])
    };
    let mut sum = patch(8, b"cd");
    for more in [patch(10, b"ef"), patch(6, b"ab"), patch(7, b"BCD")] {
        sum.push(more);
    }
    assert_eq!(sum, patch(6, b"aBCDef"));
}

/// Patches that fall or touch are no sum: to make one of them could take for ever.
#[test]
fn patches_that_fall_or_touch_are_refused() {
    let patch = |offset: u32| Change::Patch { offset, bytes: Bytes::from_static(b"1234") };
    let place = |changes: &[Change]| Pending::from_changes(changes.to_vec()).err();
    assert_eq!(place(&[patch(0), patch(5), patch(10)]), None);
    assert_eq!(place(&[patch(0), patch(5), patch(9)]), Some(2));
    assert_eq!(place(&[patch(5), patch(0)]), Some(1));
    assert_eq!(place(&[patch(5), Change::Truncate { length: 7 }, patch(0)]), None);
}

/// A chain of what would have been joined takes many times more memory than bytes.
#[test]
fn changes_that_are_always_joined_are_refused_where_they_follow_each_other() {
    let place = |changes: &[Change]| Pending::from_changes(changes.to_vec()).err();
    let truncate = Change::Truncate { length: 7 };
    let update =
        |fields: usize| Change::Update { fields: vec![FieldUpdate::Max { offset: 8, value: 7 }; fields] };
    assert_eq!(place(&[truncate.clone(), update(1), truncate.clone()]), None);
    assert_eq!(place(&[update(1), truncate.clone(), truncate]), Some(2));
    assert_eq!(place(&[update(32), update(33), update(32)]), None);
    assert_eq!(place(&[update(33), update(32), update(32)]), Some(2));
}

/// What small changes take was counted as their bytes alone: memory was full long before anything was thrown out of it.
#[test]
fn very_many_small_changes_weigh_what_they_take() {
    let fields = (0..64).map(|offset| FieldUpdate::Set { offset, bytes: Bytes::from_static(b"x") });
    let update = Pending::Changes(vec![Change::Update { fields: fields.collect() }]);
    assert!(update.weight() >= 63 * size_of::<FieldUpdate>(), "{}", update.weight());
    let patches = (0..1000).map(|number| Change::Patch { offset: 2 * number, bytes: Bytes::new() });
    let patches = Pending::from_changes(patches.collect()).unwrap();
    assert!(patches.weight() >= 980 * size_of::<Change>(), "{}", patches.weight());
    // Of what writers make it is what it was.
    let few = Pending::Changes(vec![Change::Patch { offset: 7, bytes: Bytes::from_static(b"1234") }]);
    assert_eq!((few.weight(), few.length()), (12, 12));
}

/// Few places of a block written again and again, or a tail cut and written anew: the sum does not grow.
#[test]
fn sums_of_what_is_written_over_stay_small() {
    let patch = |offset: u32, bytes: u32| Change::Patch {
        offset,
        bytes: Bytes::copy_from_slice(&bytes.to_le_bytes()),
    };
    let mut sum = Pending::Changes(vec![patch(0, 0)]);
    for round in 0..1000 {
        for change in
            [patch(2048, round), patch(0, round), Change::Truncate { length: 2050 }, patch(3000, round)]
        {
            sum.push(Pending::Changes(vec![change]));
        }
    }
    let cut = Change::Patch { offset: 2048, bytes: Bytes::copy_from_slice(&999_u32.to_le_bytes()[..2]) };
    assert_eq!(
        sum,
        Pending::Changes(vec![Change::Truncate { length: 2050 }, patch(0, 999), cut, patch(3000, 999)])
    );
}

#[test]
fn an_update_outside_the_value_does_nothing() {
    let field = FieldUpdate::Add { offset: 1, value: 1 };
    let update = Pending::Changes(vec![Change::Update { fields: vec![field] }]);
    let old = Bytes::from_static(&[0; 8]);
    assert_eq!(update.apply(Some(old.clone())), Some(old));
    assert_eq!(update.apply(None), None);
}

/// Each field of one would be compared with each of the other.
#[test]
fn updates_of_many_fields_are_not_joined() {
    let update = |from: u16, count| {
        let fields = (from..from + count)
            .map(|at| FieldUpdate::Set { offset: 8 * at, bytes: vec![at as u8; 8].into() });
        Change::Update { fields: fields.collect() }
    };
    let sum = |count| {
        let mut sum = Pending::Changes(vec![update(0, count)]);
        let before = sum.weight() as isize;
        assert_eq!(sum.push(Pending::Changes(vec![update(1, count)])), sum.weight() as isize - before);
        sum
    };
    assert_eq!(sum(32), Pending::Changes(vec![update(0, 33)]));
    assert_eq!(sum(33), Pending::Changes(vec![update(0, 33), update(1, 33)]));
}
