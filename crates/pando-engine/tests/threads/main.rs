//! Threads beside the engine's own. A program of its own: where one of them panics it ends, since nobody could pass it on.

#[path = "../api/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod common;
mod eviction;
mod moves;

/// Ends the program where any thread panics: the engine's own have nobody to whom they could pass it on.
fn abort_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::abort();
    }));
}
