//! Superblocks with a right checksum and any contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::head::reseal;
use pando_format::{Structure, Superblock};

fuzz_target!(|data: &[u8]| {
    let mut data = data.to_vec();
    reseal(Structure::Superblock, &mut data);
    let Ok(superblock) = Superblock::decode(&data.into()) else { return };
    let again = Superblock::decode(&Bytes::from(superblock.encode()));
    assert_eq!(again, Ok(superblock));
});
