//! Whether predicted tokens are those that workers computed.
//!
//! A worker may run with another template, another tokenizer or other settings of its image processor than the folder says.
//! Its own KV events tell: they carry the tokens of each block, and some time after it has answered, those of the prompt are
//! among them, unless the prediction was wrong. The first prompts of a model are compared, then a sample.
//! When more than a twentieth of the last comparisons failed, prompts of the model are known by their texts until the
//! gateway is started again.

use std::collections::VecDeque;

use crate::{
    observe,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Prompts of a model that are compared from the start.
const FIRST: u64 = 64;

/// After them, one in this many.
const SAMPLE: u64 = 64;

/// Comparisons that count.
const WINDOW: usize = 200;

/// Before there are so many, one bad luck would be more than a twentieth.
const ENOUGH: usize = 20;

/// Watches over the predictions for one model.
#[derive(Debug)]
pub struct SelfCheck {
    model: Option<String>,
    prompts: AtomicU64,
    on: AtomicBool,
    recent: Mutex<VecDeque<bool>>,
}

impl SelfCheck {
    /// For the model of this served name.
    pub fn new(model: Option<&str>) -> Self {
        SelfCheck {
            model: model.map(str::to_owned),
            prompts: AtomicU64::new(0),
            on: AtomicBool::new(true),
            recent: Mutex::new(VecDeque::new()),
        }
    }

    /// Whether predictions are used.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether the next prompt should be compared. Counts it.
    pub fn wants(&self) -> bool {
        let nth = self.prompts.fetch_add(1, Ordering::Relaxed);
        self.is_on() && (nth < FIRST || nth.is_multiple_of(SAMPLE))
    }

    /// Counts one comparison.
    pub fn record(&self, agrees: bool) {
        observe::prompt_check(agrees);
        let mut recent = self.recent.lock();
        if recent.len() == WINDOW {
            recent.pop_front();
        }
        recent.push_back(agrees);
        let wrong = recent.iter().filter(|&&agrees| !agrees).count();
        let too_many = recent.len() >= ENOUGH && wrong * 20 > recent.len();
        if too_many && self.on.swap(false, Ordering::Relaxed) {
            observe::prompt_model_off();
            tracing::warn!(
                model = self.model,
                wrong,
                of = recent.len(),
                "the model's files do not say what its workers compute (another chat template, tokenizer or image \
                 processor?): its prompts are routed by their texts from now on"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_prompts_are_wanted_and_then_a_sample() {
        let check = SelfCheck::new(Some("m"));
        let wanted = (0..FIRST + 10 * SAMPLE).filter(|_| check.wants()).count();
        assert_eq!(wanted as u64, FIRST + 10);
    }

    #[test]
    fn above_one_in_twenty_wrong_it_turns_itself_off_for_good() {
        let check = SelfCheck::new(None);
        for nth in 0..400 {
            check.record(nth % 20 != 19);
        }
        assert!(check.is_on(), "exactly one in twenty");
        // The twentieth of the window has left it by then.
        (0..2).for_each(|_| check.record(false));
        assert!(!check.is_on() && !check.wants());
        for _ in 0..1000 {
            check.record(true);
        }
        assert!(!check.is_on());
    }

    #[test]
    fn a_model_that_is_all_wrong_is_off_soon_and_one_mistake_is_forgiven() {
        let check = SelfCheck::new(None);
        check.record(false);
        for _ in 0..ENOUGH {
            check.record(true);
        }
        assert!(check.is_on());
        let check = SelfCheck::new(None);
        for _ in 0..ENOUGH {
            check.record(false);
        }
        assert!(!check.is_on());
    }
}
