//! Metrics of something that may go away, such as a worker: they go with it.
//!
//! The recorder of all other metrics keeps every series that there ever was. Workers come and go, in a fleet that scales
//! by itself under a new address each time; so theirs are kept beside them, and rendered from there.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ::metrics::{Label, counter, gauge, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

/// The series that have one label in common, such as `worker="10.0.0.1:8000"`.
#[derive(Debug)]
pub struct Series {
    common: Label,
    values: Mutex<BTreeMap<Name, Value>>,
}

/// Of a metric, and its label beside the common one.
type Name = (&'static str, Option<(&'static str, &'static str)>);

#[derive(Debug, Clone, Copy)]
enum Value {
    Gauge(f64),
    Counter(u64),
}

impl Series {
    pub fn new(label: &'static str, value: String) -> Self {
        Series { common: Label::new(label, value), values: Mutex::default() }
    }

    pub(super) fn set(&self, metric: &'static str, value: f64) {
        self.values().insert((metric, None), Value::Gauge(value));
    }

    pub(super) fn set_of(&self, metric: &'static str, label: (&'static str, &'static str), value: f64) {
        self.values().insert((metric, Some(label)), Value::Gauge(value));
    }

    pub(super) fn add(&self, metric: &'static str, label: Option<(&'static str, &'static str)>, count: u64) {
        if let Value::Counter(sum) = self.values().entry((metric, label)).or_insert(Value::Counter(0)) {
            *sum += count;
        }
    }

    fn record(&self) {
        for (&(metric, label), &value) in &*self.values() {
            let mut labels = vec![self.common.clone()];
            labels.extend(label.map(|(name, value)| Label::from_static_parts(name, value)));
            match value {
                Value::Gauge(value) => gauge!(metric, labels).set(value),
                Value::Counter(sum) => counter!(metric, labels).absolute(sum),
            }
        }
    }

    fn values(&self) -> MutexGuard<'_, BTreeMap<Name, Value>> {
        // Whole at any moment.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All of them, as /metrics shows them; `describe` says what they are.
pub(super) fn render<'a>(all: impl IntoIterator<Item = &'a Series>, describe: fn()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        describe();
        all.into_iter().for_each(Series::record);
    });
    recorder.handle().render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rendered_is_what_was_last_set_and_all_that_was_added_of_those_that_are_there() {
        let (one, other) = (Series::new("worker", "a:1".into()), Series::new("worker", "b:1".into()));
        one.set("up", 0.0);
        one.set("up", 1.0);
        other.set_of("lane", ("lane", "tcp"), 1.0);
        for _ in 0..3 {
            one.add("opened_total", None, 2);
        }
        let both = render([&one, &other], || {});
        for line in [r#"up{worker="a:1"} 1"#, r#"lane{worker="b:1",lane="tcp"} 1"#, r#"opened_total{worker="a:1"} 6"#] {
            assert!(both.lines().any(|other| other == line), "{line} is not in\n{both}");
        }
        assert!(!render([&other], || {}).contains("a:1"));
    }
}
