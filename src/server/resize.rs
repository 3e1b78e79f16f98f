//! Whether the images of a request are brought to the size that the model will see before they are sent.
//!
//! They are where every worker that may get the request has the same image processor, one whose rule is known and covered by
//! a test, and the request does not tell that processor to work otherwise. The rule is fixed before the images are loaded,
//! since what they are called depends on it; the request then goes to workers of that rule only.

use std::{fmt, str::FromStr};

use super::models;
use crate::{media::resize::SmartResize, request::ClientRequest, worker::Registry};

/// `--resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resize {
    /// Where it changes nothing for the model.
    #[default]
    Auto,
    Off,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is `auto` or `off`")]
pub struct UnknownResize;

impl FromStr for Resize {
    type Err = UnknownResize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Resize::Auto),
            "off" => Ok(Resize::Off),
            _ => Err(UnknownResize),
        }
    }
}

impl fmt::Display for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resize::Auto => "auto",
            Resize::Off => "off",
        })
    }
}

/// The rule for a request's images; `None` leaves them as they are.
pub fn of_request(resize: Resize, registry: &Registry, request: &ClientRequest<'_>) -> Option<SmartResize> {
    let asked = !request.images.is_empty() && !request.processor_kwargs;
    if asked { of_model(resize, registry, request.model.as_deref()) } else { None }
}

/// The rule for images that are meant for a model; `None` as the model means whichever is served.
pub fn of_model(resize: Resize, registry: &Registry, model: Option<&str>) -> Option<SmartResize> {
    if resize == Resize::Off {
        return None;
    }
    let workers = registry.available();
    agreed(workers.iter().map(|worker| (models::may_serve(worker, model), worker.resize())))
}

/// What all that may get the request have in common.
fn agreed(workers: impl Iterator<Item = (bool, Option<SmartResize>)>) -> Option<SmartResize> {
    let mut rules = workers.filter(|(serves, _)| *serves).map(|(_, rule)| rule);
    let first = rules.next()??;
    rules.all(|rule| rule == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workers_of_the_model_must_have_the_same_rule() {
        let (a, b) = (SmartResize::new(28, 4, 5_000), SmartResize::new(32, 4, 5_000));
        let of = |workers: &[(bool, Option<SmartResize>)]| agreed(workers.iter().copied());
        assert_eq!(of(&[(true, a), (true, a)]), a);
        assert_eq!(of(&[(true, a), (false, b), (false, None)]), a);
        for workers in
            [&[(true, a), (true, b)][..], &[(true, a), (true, None)], &[(true, None), (true, a)], &[(false, a)], &[]]
        {
            assert_eq!(of(workers), None, "{workers:?}");
        }
    }

    #[test]
    fn the_setting_reads_what_it_writes() {
        for resize in [Resize::Auto, Resize::Off] {
            assert_eq!(resize.to_string().parse(), Ok(resize));
        }
        assert_eq!("on".parse::<Resize>(), Err(UnknownResize));
    }
}
