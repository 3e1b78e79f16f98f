//! The loader and an origin whose pictures change, fail and are private: what it shows, when it asks, what it keeps and what
//! it holds, after any sequence of steps.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use mediagate::{
    error::Fault,
    media::{
        content::Scope,
        loader::{Loaded, MediaConfig, MediaLoader},
    },
    memory::Arena,
};
use proptest::prelude::*;

use crate::loader_support::{PATIENCE, at_rest, config, late, picture, pixels, png};

const SOURCES: u8 = 5;
const CONTENTS: u8 = 4;

/// Pictures of 64 x 64, three pages each, for which the arena has six places.
const SIDE: u32 = 64;
const PICTURE_BYTES: usize = (SIDE * SIDE * 3) as usize;
const PLACES: usize = 6;

/// How long a picture is fresh, and a failure told again.
const FRESH: Duration = Duration::from_millis(60);

#[derive(Debug, Clone)]
enum Step {
    /// A request for a source, which holds what it gets until it lets go.
    Get { source: u8, hold: bool },
    /// The request that holds something the longest lets go.
    LetGo,
    /// Everything that nobody holds is dropped.
    Evict,
    /// What was fresh is no longer.
    Expire,
    /// From now on the source shows this, in this manner.
    Becomes { source: u8, content: u8, manner: Manner },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Plain,
    /// With an entity tag, so that it can be asked about.
    Tagged,
    /// `no-store`.
    Private,
    Failing,
}

fn step() -> impl Strategy<Value = Step> {
    let manner = prop_oneof![3 => Just(Manner::Plain), 3 => Just(Manner::Tagged), 1 => Just(Manner::Private), 1 => Just(Manner::Failing)];
    prop_oneof![
        10 => (0..SOURCES, any::<bool>()).prop_map(|(source, hold)| Step::Get { source, hold }),
        3 => Just(Step::LetGo),
        1 => Just(Step::Evict),
        1 => Just(Step::Expire),
        4 => (0..SOURCES, 0..CONTENTS, manner)
            .prop_map(|(source, content, manner)| Step::Becomes { source, content, manner }),
    ]
}

/// What the sources show, and what was asked for.
#[derive(Default)]
struct Origin {
    shows: Mutex<Vec<(u8, Manner)>>,
    /// Answers so far: whole pictures, and "unchanged".
    answers: Mutex<(usize, usize)>,
}

async fn answer(State(origin): State<Arc<Origin>>, Path(source): Path<u8>, headers: HeaderMap) -> Response {
    let (content, manner) = origin.shows.lock().unwrap()[usize::from(source)];
    let mut said = HeaderMap::new();
    if manner == Manner::Tagged {
        said.insert(header::ETAG, format!("\"{content}\"").parse().unwrap());
        if headers.get(header::IF_NONE_MATCH) == said.get(header::ETAG) {
            origin.answers.lock().unwrap().1 += 1;
            return (StatusCode::NOT_MODIFIED, said).into_response();
        }
    }
    origin.answers.lock().unwrap().0 += 1;
    match manner {
        Manner::Failing => return StatusCode::NOT_FOUND.into_response(),
        Manner::Private => drop(said.insert(header::CACHE_CONTROL, "no-store".parse().unwrap())),
        Manner::Plain | Manner::Tagged => {}
    }
    (said, png(content.into(), SIDE, SIDE)).into_response()
}

/// What the loader knows of a source.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// `None` for a failure.
    content: Option<u8>,
    tagged: bool,
    /// It was fresh before the first and is stale after the second.
    until: (Instant, Instant),
}

#[derive(Default)]
struct Model {
    sources: [Option<Known>; SOURCES as usize],
    /// What is kept, what was used the longest ago first.
    kept: Vec<u8>,
    /// What requests hold, and whether it is kept as well.
    held: Vec<(u8, bool)>,
}

impl Model {
    fn is_held(&self, content: u8) -> bool {
        self.held.iter().any(|(other, kept)| *kept && *other == content)
    }

    /// Whether it is kept; then it was used just now.
    fn uses(&mut self, content: u8) -> bool {
        let at = self.kept.iter().position(|other| *other == content);
        if let Some(at) = at {
            let content = self.kept.remove(at);
            self.kept.push(content);
        }
        at.is_some()
    }

    /// Places that are taken.
    fn taken(&self) -> usize {
        self.kept.len() + self.held.iter().filter(|(content, kept)| !kept || !self.kept.contains(content)).count()
    }

    /// A place for a picture that is decoded.
    fn make_room(&mut self) {
        if self.taken() == PLACES {
            let victim = self.kept.iter().position(|content| !self.is_held(*content));
            self.kept.remove(victim.expect("fewer are held than there are places"));
        }
    }
}

/// What a request is to come to.
enum Expected {
    Shown { content: u8, kept: bool },
    Refused,
}

struct World<'a> {
    origin: &'a Origin,
    loader: MediaLoader,
    port: u16,
    model: Model,
    loaded: Vec<Loaded>,
}

impl World<'_> {
    async fn get(&mut self, source: u8, hold: bool) {
        let url = format!("http://127.0.0.1:{}/{source}", self.port);
        let before = *self.origin.answers.lock().unwrap();
        let start = Instant::now();
        let result = self.loader.load(url.into(), &Scope::default(), late()).await;
        let end = Instant::now();
        let after = *self.origin.answers.lock().unwrap();
        let answers = (after.0 - before.0, after.1 - before.1);
        let expected = self.expect(source, start, end, answers);
        match (result, expected) {
            (Ok(loaded), Expected::Shown { content, kept }) => {
                assert_eq!(picture(&loaded).0, pixels(content.into(), SIDE, SIDE));
                // Others need a place too.
                if hold && self.model.held.len() < PLACES - 1 {
                    self.model.held.push((content, kept));
                    self.loaded.push(loaded);
                }
            }
            (Err(error), Expected::Refused) => assert_eq!(error.code(), "media_origin_refused"),
            (Ok(_), Expected::Refused) => panic!("a picture where there is none"),
            (Err(error), Expected::Shown { .. }) => panic!("{error}"),
        }
    }

    /// Moves the model on, and checks that the origin was asked if it had to be, and only then.
    fn expect(&mut self, source: u8, start: Instant, end: Instant, answers: (usize, usize)) -> Expected {
        let (content, manner) = self.origin.shows.lock().unwrap()[usize::from(source)];
        let known = self.model.sources[usize::from(source)];
        let was_asked = answers != (0, 0);
        let (may_be_fresh, may_be_stale) =
            known.map_or((false, true), |known| (start < known.until.1, end >= known.until.0));
        let is_there = match known {
            // What is stale and cannot be asked about is not looked at.
            Some(Known { content: Some(content), tagged: false, .. }) if was_asked => {
                self.model.kept.contains(&content)
            }
            Some(Known { content: Some(content), .. }) => self.model.uses(content),
            Some(Known { content: None, .. }) => true,
            None => false,
        };
        if !was_asked {
            assert!(may_be_fresh && is_there, "the origin had to be asked");
            let known = known.and_then(|known| known.content);
            return known.map_or(Expected::Refused, |content| Expected::Shown { content, kept: true });
        }
        assert!(may_be_stale || !is_there, "the origin was asked for what was known");
        let until = (start + FRESH, end + FRESH);
        let tagged = manner == Manner::Tagged;
        if let Some(Known { content: Some(old), tagged: true, .. }) = known
            && tagged
            && is_there
            && old == content
        {
            assert_eq!(answers, (0, 1), "what may have changed is asked about, and not fetched again");
            self.model.sources[usize::from(source)] = Some(Known { content: Some(old), tagged, until });
            return Expected::Shown { content, kept: true };
        }
        assert_eq!(answers, (1, 0));
        if manner == Manner::Failing {
            self.model.sources[usize::from(source)] = Some(Known { content: None, tagged: false, until });
            return Expected::Refused;
        }
        self.model.make_room();
        if manner == Manner::Private {
            // What was known of it before stays what it was: a failure is told again, a picture asked about.
            return Expected::Shown { content, kept: false };
        }
        self.model.sources[usize::from(source)] = Some(Known { content: Some(content), tagged, until });
        if !self.model.uses(content) {
            self.model.kept.push(content);
        }
        Expected::Shown { content, kept: true }
    }

    async fn check(&self) {
        for (loaded, (content, _)) in self.loaded.iter().zip(&self.model.held) {
            assert_eq!(picture(loaded).0, pixels((*content).into(), SIDE, SIDE), "what is held never changes");
        }
        // What ends with a request ends on a thread of the pool, at times a moment later.
        let deadline = Instant::now() + PATIENCE;
        let expected = (self.model.held.len() * PICTURE_BYTES, self.model.taken() * PICTURE_BYTES);
        loop {
            let held = self.loader.held();
            let found = (held.small_pixels_bytes, self.loader.arena().usage().used_bytes);
            if found == expected && held.encoded_bytes == 0 && held.scratch_bytes == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "held and used {found:?}, to be {expected:?}; {held:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn run(steps: Vec<Step>, origin: Arc<Origin>, port: u16) {
    *origin.shows.lock().unwrap() = (0..SOURCES).map(|source| (source % CONTENTS, Manner::Plain)).collect();
    let config = MediaConfig { fresh: FRESH, negative: FRESH, ..config(port) };
    let loader = MediaLoader::new(config, Arena::new(PLACES * PICTURE_BYTES).unwrap()).unwrap();
    let mut world = World { origin: &origin, loader, port, model: Model::default(), loaded: Vec::new() };
    for step in steps {
        match step {
            Step::Get { source, hold } => world.get(source, hold).await,
            Step::LetGo if world.loaded.is_empty() => {}
            Step::LetGo => {
                world.loaded.remove(0);
                world.model.held.remove(0);
            }
            Step::Evict => {
                world.loader.clear();
                let Model { kept, held, .. } = &mut world.model;
                kept.retain(|content| held.iter().any(|(other, kept)| *kept && other == content));
            }
            Step::Expire => tokio::time::sleep(FRESH).await,
            Step::Becomes { source, content, manner } => {
                origin.shows.lock().unwrap()[usize::from(source)] = (content, manner);
            }
        }
        world.check().await;
    }
    world.loaded.clear();
    at_rest(&world.loader).await;
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn the_loader_does_what_the_model_does(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let origin = Arc::<Origin>::default();
            let app = Router::new().route("/{source}", get(answer)).with_state(origin.clone());
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move { axum::serve(listener, app).await });
            run(steps, origin, port).await;
        });
    }
}
