//! How requests reach the dispatcher. Today through the `fuser` crate and /dev/fuse; no type of that crate leaves
//! this folder but inside [`crate::Session`].

mod convert;
mod fuser_adapter;
mod negotiate;

pub(crate) use fuser_adapter::{Adapter, KernelCache};
