//! Raw buffer parts.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::{BufferPart, Compression, Msn, Pending, Structure, open_part};

fuzz_target!(|data: &[u8]| {
    let Ok(part) = BufferPart::decode(&Bytes::copy_from_slice(data)) else { return };
    let encoded = part.encode(Compression::None);
    let stored = Bytes::from(encoded.pieces.concat());
    let raw = open_part(Structure::BufferPart, &stored, &encoded.entry(1, Msn::default()));
    let raw = raw.expect("what was encoded can be opened");
    assert_eq!(BufferPart::decode(&raw).as_ref(), Ok(&part));

    // Whatever was decoded can be summed and settled, and both agree.
    let value = Some(Bytes::from_static(&[0x5a; 40]));
    let mut sum: Option<Pending> = None;
    let mut one_by_one = value.clone();
    for (_, _, pending) in part.keyed.iter().take(8) {
        one_by_one = pending.apply(one_by_one);
        match &mut sum {
            Some(sum) => {
                sum.push(pending.clone());
            }
            None => sum = Some(pending.clone()),
        }
    }
    if let Some(sum) = sum {
        assert_eq!(sum.settle(value), one_by_one);
    }
});
