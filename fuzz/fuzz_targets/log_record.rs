//! Records of the log.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::log_record::decode_record;
use pando_format::{LogRecord, LoggedOperation, Lsn, Operation, encode_binding, encode_record_unbound};

/// Unbound bytes are made up to encode a record again; more than this is not worth the memory.
const UNBOUND_LENGTH_MAX: u32 = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Ok(record) = decode_record(&Bytes::copy_from_slice(data), Lsn(7)) else { return };
    let encoded = match &record {
        LogRecord::Binding(binding) => encode_binding(binding),
        LogRecord::Operations { operations, .. } => {
            let Some(whole) = operations.iter().map(whole).collect::<Option<Vec<_>>>() else { return };
            encode_record_unbound(&whole, |i| !matches!(operations[i], LoggedOperation::Whole(_)))
        }
    };
    let bytes = Bytes::from(encoded.pieces().collect::<Vec<_>>().concat());
    assert_eq!(bytes.len(), encoded.length());
    assert_eq!(decode_record(&bytes, Lsn(7)), Ok(record));
});

fn whole(operation: &LoggedOperation) -> Option<Operation> {
    let zeros = |length: u32| (length <= UNBOUND_LENGTH_MAX).then(|| Bytes::from(vec![0; length as usize]));
    match operation.clone() {
        LoggedOperation::Whole(operation) => Some(operation),
        LoggedOperation::UnboundPut { tree, key, length } => {
            Some(Operation::Put { tree, key, value: zeros(length)? })
        }
        LoggedOperation::UnboundPutRun { tree, prefix, first, length } => {
            Some(Operation::PutRun { tree, prefix, first, bytes: zeros(length)? })
        }
    }
}
