//! Both levels of the cache against a list and a map.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mediagate::{
    media::{
        cache::{Contents, Known, SourceKey, Sources},
        content::{MediaId, Name, Scope},
        error::MediaError,
        fetch::{FetchError, Validators},
        picture::{Content, Media, Picture},
    },
    memory::{Arena, SLOT_ALIGNMENT_BYTES, ZoneId},
};
use proptest::prelude::*;

/// Contents and sources are numbers; content `n` is a picture of `pages(n)` pages.
#[derive(Debug, Clone)]
enum Step {
    /// A request for a source, which shows this content at its origin now: from the cache, or decoded and remembered.
    Get {
        source: u8,
        content: u8,
        fresh_s: u64,
        tagged: bool,
    },
    /// A request for a source that takes the short way, if that leads anywhere.
    Hit {
        source: u8,
    },
    /// The origin fails, and is asked.
    Fail {
        source: u8,
    },
    /// A request holds a picture.
    Pin {
        content: u8,
    },
    /// The request that holds it the longest lets go.
    Unpin,
    Evict,
    Expire {
        seconds: u64,
    },
    Forget {
        source: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..8, 0u8..12, 0u64..60, any::<bool>())
            .prop_map(|(source, content, fresh_s, tagged)| Step::Get { source, content, fresh_s, tagged }),
        3 => (0u8..8).prop_map(|source| Step::Hit { source }),
        1 => (0u8..8).prop_map(|source| Step::Fail { source }),
        2 => (0u8..12).prop_map(|content| Step::Pin { content }),
        2 => Just(Step::Unpin),
        2 => Just(Step::Evict),
        1 => (1u64..40).prop_map(|seconds| Step::Expire { seconds }),
        1 => (0u8..8).prop_map(|source| Step::Forget { source }),
    ]
}

const FAILURE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq)]
enum Shown {
    Fresh(u8),
    Stale(u8),
    Failed,
    Nothing,
}

#[derive(Default)]
struct Model {
    /// Content, until when, and whether it can be asked about; or a failure.
    sources: HashMap<u8, (Option<u8>, Instant2, bool)>,
    /// What was used the longest ago first.
    contents: Vec<u8>,
    pins: Vec<u8>,
}

/// Seconds and steps since the beginning.
type Instant2 = Duration;

impl Model {
    fn lookup(&mut self, source: u8, now: Instant2) -> Shown {
        let shown = match self.sources.get(&source) {
            Some((Some(content), until, _)) if now < *until => return Shown::Fresh(*content),
            Some((Some(content), _, true)) => return Shown::Stale(*content),
            Some((None, until, _)) if now < *until => return Shown::Failed,
            _ => Shown::Nothing,
        };
        self.sources.remove(&source);
        shown
    }

    fn has(&self, content: u8) -> bool {
        self.contents.contains(&content)
    }

    fn used(&mut self, content: u8) {
        self.contents.retain(|other| *other != content);
        self.contents.push(content);
    }

    fn evict(&mut self) -> Option<u8> {
        let at = self.contents.iter().position(|content| !self.pins.contains(content))?;
        Some(self.contents.remove(at))
    }
}

fn pages(content: u8) -> u32 {
    1 + u32::from(content % 3)
}

/// One row of whole pages: 4096 pixels are three pages.
fn name(content: u8) -> (Name, Vec<u8>) {
    let width = pages(content) * 1365;
    let pixels = vec![content; width as usize * 3];
    (Name::of(&Scope::default(), 1, width, &pixels), pixels)
}

fn picture(content: u8) -> Content {
    Content::Picture(name(content).0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_cache_does_what_a_list_and_a_map_would(steps in proptest::collection::vec(step(), 1..120)) {
        let arena = Arena::new(256 * SLOT_ALIGNMENT_BYTES).unwrap();
        let (sources, contents) = (Sources::default(), Contents::new(arena.clone()));
        let ids: HashMap<MediaId, u8> = (0..12).map(|content| (name(content).0.media_id, content)).collect();
        let mut model = Model::default();
        let mut held: Vec<Media> = Vec::new();
        let (start, mut clock) = (Instant::now(), Duration::ZERO);
        for step in steps {
            // No two uses at one time.
            clock += Duration::from_nanos(1);
            let now = start + clock;
            match step {
                Step::Get { source, content, fresh_s, tagged } => {
                    let key = SourceKey::url(&Scope::default(), &source.to_string());
                    let shown = match sources.lookup(&key, now) {
                        Some(Known::Fresh(name)) => Shown::Fresh(ids[name.id()]),
                        Some(Known::Stale(name, validators)) => {
                            prop_assert!(!validators.is_empty());
                            Shown::Stale(ids[name.id()])
                        }
                        Some(Known::Failed(_)) => Shown::Failed,
                        None => Shown::Nothing,
                    };
                    prop_assert_eq!(&shown, &model.lookup(source, clock));
                    match shown {
                        Shown::Failed => continue,
                        Shown::Fresh(content) => {
                            prop_assert_eq!(contents.touch(&picture(content), now), model.has(content));
                            if model.has(content) {
                                model.used(content);
                                continue;
                            }
                        }
                        Shown::Stale(_) | Shown::Nothing => {}
                    }
                    let (name, pixels) = name(content);
                    let mut slot = arena.allocate(pixels.len()).unwrap();
                    slot.copy_from_slice(&pixels);
                    let picture = Media::Picture(Picture { name, slot: slot.freeze() });
                    let (kept, was_there) = contents.keep(picture, now);
                    prop_assert_eq!(was_there, model.has(content));
                    prop_assert_eq!(&kept.slot()[..], &pixels[..]);
                    model.used(content);
                    let etag = tagged.then(|| "\"tag\"".parse().unwrap());
                    let fresh = Duration::from_secs(fresh_s);
                    let validators = Validators { etag, ..Validators::default() };
                    sources.remember(key, kept.content(), Some(fresh), validators, now);
                    sources.found(&key, &kept, now);
                    model.sources.insert(source, (Some(content), clock + fresh, tagged));
                }
                Step::Hit { source } => {
                    let key = SourceKey::url(&Scope::default(), &source.to_string());
                    let hit = sources.hit(&key, now, |bytes| arena.try_lease(bytes).ok());
                    if let Some(hit) = hit {
                        let Some((Some(content), until, _)) = model.sources.get(&source).copied() else {
                            return Err(TestCaseError::fail("hit what the model does not know"));
                        };
                        prop_assert!(clock < until && model.has(content));
                        prop_assert_eq!(&hit.slot()[..], &name(content).1[..]);
                        contents.mark_used(&hit, now);
                        model.used(content);
                        model.pins.push(content);
                        held.push(hit);
                    }
                }
                Step::Fail { source } => {
                    let key = SourceKey::url(&Scope::default(), &source.to_string());
                    sources.remember_failure(key, Arc::new(MediaError::from(FetchError::Empty)), FAILURE, now);
                    model.sources.insert(source, (None, clock + FAILURE, false));
                }
                Step::Pin { content } => {
                    let pixels = name(content).1;
                    let lease = Arc::new(arena.try_lease(pixels.len()).unwrap());
                    let pinned = contents.pin(&picture(content), &lease, now);
                    prop_assert_eq!(pinned.is_some(), model.has(content));
                    if let Some(pinned) = pinned {
                        prop_assert_eq!(&pinned.slot()[..], &pixels[..]);
                        model.used(content);
                        model.pins.push(content);
                        held.push(pinned);
                    }
                }
                Step::Unpin => {
                    if !held.is_empty() {
                        held.remove(0);
                        model.pins.remove(0);
                    }
                }
                Step::Evict => {
                    let victim = model.evict();
                    prop_assert_eq!(contents.evict_one(ZoneId::Small), victim.is_some());
                    // Asking whether the others are there counts as using them, so only the one is asked for.
                    if let Some(victim) = victim {
                        prop_assert!(!contents.touch(&picture(victim), now));
                    }
                }
                Step::Expire { seconds } => clock += Duration::from_secs(seconds),
                Step::Forget { source } => {
                    sources.forget(&SourceKey::url(&Scope::default(), &source.to_string()));
                    model.sources.remove(&source);
                }
            }
            // What is kept is what the model keeps, and its pages are all that is used: what is pinned is never evicted.
            let used: u32 = model.contents.iter().map(|content| pages(*content)).sum();
            prop_assert_eq!(arena.usage().used_bytes, used as usize * SLOT_ALIGNMENT_BYTES);
            prop_assert_eq!(contents.len(), model.contents.len());
            let leased: u32 = model.pins.iter().map(|content| pages(*content)).sum();
            let budget = arena.budget(ZoneId::Small);
            prop_assert_eq!(budget.total_bytes() - budget.free_bytes(), leased as usize * SLOT_ALIGNMENT_BYTES);
            for (pinned, content) in held.iter().zip(&model.pins) {
                prop_assert_eq!(&pinned.slot()[..], &name(*content).1[..]);
            }
        }
        drop(held);
        contents.clear();
        prop_assert_eq!(arena.usage().used_bytes, 0);
    }
}
