//! Panics of code that reads what strangers sent, such as an image codec: an error of that one input, and a line in the log
//! instead of a report on standard error.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind},
};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; the message of its panic, should there be one.
///
/// What `work` changed outside of itself may be half changed then: the caller has to give it up.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    result.map_err(|payload| message(&*payload).to_owned())
}

/// From now on, panics within [`contain`] are a warning in the log. Others are reported as before.
pub fn log_contained() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| if CONTAINED.get() { log(info) } else { report(info) }));
}

fn log(info: &PanicHookInfo<'_>) {
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::warn!(location, "contained panic: {}", message(info.payload()));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        (None, None) => "no message",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn only_what_is_not_contained_is_reported() {
        static REPORTS: AtomicUsize = AtomicUsize::new(0);
        const OURS: &str = "a panic of this test";

        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if message(info.payload()).contains(OURS) {
                REPORTS.fetch_add(1, Ordering::SeqCst);
            } else {
                report(info);
            }
        }));
        log_contained();
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| -> u8 { panic!("{OURS}, formatted") }), Err(format!("{OURS}, formatted")));
        let nested = contain(|| -> u8 {
            assert_eq!(contain(|| -> u8 { panic!("inner {OURS}") }), Err(format!("inner {OURS}")));
            panic!("outer {OURS}")
        });
        assert_eq!(nested, Err(format!("outer {OURS}")));
        assert_eq!(REPORTS.load(Ordering::SeqCst), 0);
        assert!(catch_unwind(|| panic!("{OURS}")).is_err());
        assert_eq!(REPORTS.load(Ordering::SeqCst), 1);
    }
}
