//! Headers of nodes with a right checksum and any contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::head::reseal;
use pando_format::{NodeHeader, Structure};

fuzz_target!(|data: &[u8]| {
    let mut data = data.to_vec();
    reseal(Structure::NodeHeader, &mut data);
    let Ok(header) = NodeHeader::decode(&data.into()) else { return };
    let encoded = header.encode();
    assert_eq!(header.encoded_length(), encoded.len());
    assert_eq!(NodeHeader::decode(&Bytes::from(encoded)), Ok(header));
});
