//! Table pages and index pages with a right checksum and any contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::head::reseal;
use pando_format::{IndexPage, Structure, TablePage};

fuzz_target!(|data: &[u8]| {
    let mut data = data.to_vec();
    reseal(Structure::TablePage, &mut data);
    reseal(Structure::IndexPage, &mut data);
    let data = Bytes::from(data);
    if let Ok(page) = TablePage::decode(&data) {
        assert_eq!(TablePage::decode(&page.encode().into()), Ok(page));
    }
    if let Ok(page) = IndexPage::decode(&data) {
        assert_eq!(IndexPage::decode(&page.encode().into()), Ok(page));
    }
});
