use super::*;

fn candidates(loads: &[usize]) -> Vec<Candidate> {
    let candidate = |(index, &in_flight): (usize, &usize)| Candidate {
        index,
        name: index as u64 + 100,
        in_flight,
        busy: Busy { tokens: in_flight as f64 * 1000.0, ..Busy::default() },
        belief: None,
    };
    loads.iter().enumerate().map(candidate).collect()
}

fn asked(key: u64) -> Asked {
    Asked {
        affinity: Affinity::of_bytes(&key.to_le_bytes()),
        prompt: Prompt::Chain(Vec::new()),
        images: Vec::new(),
        mm: None,
        model: None,
        salt: None,
        named: true,
        checked: false,
    }
}

fn chosen(router: &Router, loads: &[usize], asked: &Asked) -> (usize, Reason) {
    let decision = router.choose(asked, &candidates(loads)).unwrap();
    (decision.index, decision.reason)
}

fn router(policy: RoutePolicy) -> Router {
    #[cfg(feature = "mm-routing")]
    return Router::new(policy, Weights::default(), Arc::new(KvIndex::new(10_000)));
    #[cfg(not(feature = "mm-routing"))]
    return Router::new(policy, Weights::default());
}

#[test]
fn nobody_is_chosen_from_nobody() {
    for policy in <RoutePolicy as clap::ValueEnum>::value_variants() {
        assert_eq!(router(*policy).choose(&asked(1), &[]).map(|decision| decision.index), None);
    }
}

#[test]
fn round_robin_takes_turns_whatever_the_load() {
    let router = router(RoutePolicy::RoundRobin);
    let turns: Vec<_> = (0..6).map(|_| chosen(&router, &[9, 0, 0], &asked(1)).0).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn the_least_loaded_is_chosen_and_equals_take_turns() {
    let router = router(RoutePolicy::LeastLoaded);
    assert_eq!(chosen(&router, &[3, 1, 2], &asked(1)), (1, Reason::Load));
    let mut counts = [0; 3];
    for key in 0..30 {
        counts[chosen(&router, &[1, 1, 1], &asked(key)).0] += 1;
    }
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn affinity_says_whether_the_owner_was_too_busy() {
    let router = router(RoutePolicy::MediaAffinity);
    let (owner, reason) = chosen(&router, &[0, 0, 0], &asked(7));
    assert_eq!(reason, Reason::Affinity);
    let mut loads = [0; 3];
    loads[owner] = 30;
    let (other, reason) = chosen(&router, &loads, &asked(7));
    assert!(other != owner && reason == Reason::Overflow);
}

#[test]
fn a_conversation_stays_where_it_began() {
    let router = router(RoutePolicy::MediaPrefix);
    let turn = |chain: &[u64], affinity| Asked { prompt: Prompt::Chain(chain.to_vec()), ..asked(affinity) };
    let (first, reason) = chosen(&router, &[0; 8], &turn(&[1, 2], 1));
    assert_eq!(reason, Reason::Affinity);
    // Whatever its later turns would have an affinity to.
    for later in 2..20 {
        let chain = [1, 2, 3, 4].iter().copied().chain(later..later + 2).collect::<Vec<_>>();
        let first_turn = chosen(&router, &[0; 8], &turn(&chain[..4], later));
        assert_eq!(first_turn, (first, Reason::Overlap));
    }
    router.forget(first);
    assert_eq!(chosen(&router, &[0; 8], &turn(&[1, 2, 3, 4], 1)).1, Reason::Affinity);
}

#[test]
fn an_image_goes_to_who_was_sent_it_before_in_another_conversation() {
    let router = router(RoutePolicy::MediaPrefix);
    let hash = MmHash::of_identifier("a");
    let with = |chain: u64, images: Vec<MmHash>| Asked {
        affinity: Affinity::new(hash.prefix()),
        prompt: Prompt::Chain((chain..chain + 40).collect()),
        images,
        ..asked(0)
    };
    let (first, _) = chosen(&router, &[0; 8], &with(1000, vec![hash]));
    // Its owner is busier than the others, but it has the image.
    let mut loads = [0; 8];
    assert_eq!(chosen(&router, &loads, &with(2000, vec![hash])), (first, Reason::Media));
    loads[first] = 30;
    let (second, _) = chosen(&router, &loads, &with(3000, vec![hash]));
    assert_ne!(second, first);
}

#[cfg(feature = "mm-routing")]
mod mm_kv {
    use super::*;
    use crate::routing::{
        kv::{
            blocks::{BlockHasher, CacheScope, chain_keys},
            events::{BlockExtra, KvEvent, Stored},
        },
        prompt::MediaSpan,
    };

    /// Text, an image, and text of its own.
    fn with_image(image: &str, question: u32) -> Asked {
        let hash = MmHash::of_identifier(image);
        let mut ids = vec![7; 100];
        ids.extend([5; 640]);
        ids.extend([question; 60]);
        Asked {
            affinity: Affinity::new(hash.prefix()),
            prompt: Prompt::Tokens(Arc::new(PromptTokens {
                ids,
                media: vec![MediaSpan { hash, offset: 100, length: 640 }],
            })),
            images: vec![hash],
            mm: Some(MmRoutingInfo::new(vec![MmImage { hash, tokens: 640 }])),
            ..asked(0)
        }
    }

    /// What a worker publishes when it has computed the prompt.
    fn event(asked: &Asked, size: usize) -> KvEvent {
        let Prompt::Tokens(prompt) = &asked.prompt else { panic!() };
        let blocks = prompt.ids.len() / size;
        let span = prompt.media[0];
        let extra = (0..blocks).map(|block| {
            let (start, end) = (block * size, (block + 1) * size);
            let within = span.offset < end && span.offset + span.length > start;
            let media = within.then_some((span.hash, span.offset as i64 - start as i64));
            BlockExtra { media: media.into_iter().collect(), ..BlockExtra::default() }
        });
        KvEvent::Stored(Stored {
            hashes: chain_keys(&BlockHasher::default().of_prompt(
                CacheScope::default(),
                &prompt.ids,
                &prompt.media,
                size,
            )),
            token_ids: prompt.ids[..blocks * size].to_vec(),
            block_size: size,
            extra: extra.collect(),
            ..Stored::default()
        })
    }

    #[test]
    fn a_burst_of_one_cold_image_meets_on_one_worker() {
        let router = router(RoutePolicy::MmKv);
        let (first, reason) = chosen(&router, &[0; 8], &with_image("a", 1));
        assert_eq!(reason, Reason::Affinity);
        for question in 2..10 {
            assert_eq!(chosen(&router, &[0; 8], &with_image("a", question)), (first, Reason::Overlap));
        }
    }

    #[test]
    fn cold_images_spread_though_they_share_their_text() {
        let router = router(RoutePolicy::MmKv);
        let mut workers: Vec<_> =
            (0..40).map(|image| chosen(&router, &[0; 4], &with_image(&format!("image {image}"), 1)).0).collect();
        workers.sort_unstable();
        let counts: Vec<_> = workers.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        assert!(counts.len() == 4 && counts.iter().all(|&count| count >= 4), "{counts:?}");
    }

    #[test]
    fn what_a_worker_says_it_holds_decides() {
        let router = router(RoutePolicy::MmKv);
        let mut lane = router.kv.lane(3, "3/0").unwrap();
        lane.set_view(View::Complete);
        let image = with_image("a", 1);
        lane.apply(event(&image, 32));
        let decision = router.choose(&image, &candidates(&[0; 8])).unwrap();
        assert_eq!((decision.index, decision.reason, decision.term.overlap), (3, Reason::Overlap, 800));
        // Another image in the same place of the same tokens: only the text before it is there.
        let decision = router.choose(&with_image("b", 1), &candidates(&[0; 8])).unwrap();
        assert_eq!((decision.terms[3].overlap, decision.terms[3].largest), (96, false));
        assert_eq!(decision.reason, Reason::Affinity);
        // Another scope.
        let salted = Asked { salt: Some("s".into()), images: Vec::new(), ..with_image("a", 1) };
        assert_eq!(router.choose(&salted, &candidates(&[0; 8])).unwrap().terms[3].overlap, 0);
        drop(lane);
        router.forget(3);
        assert_eq!(router.choose(&image, &candidates(&[0; 8])).unwrap().reason, Reason::Affinity);
    }

    #[test]
    fn an_image_by_url_is_found_in_events_once_its_name_was_learned() {
        let router = router(RoutePolicy::MmKv);
        let mut lanes: Vec<_> = (0..8).map(|worker| router.kv.lane(worker, &worker.to_string()).unwrap()).collect();
        lanes.iter_mut().for_each(|lane| lane.set_view(View::Complete));
        let by_url = |question| Asked { named: false, ..with_image("url", question) };
        let choose = |question| router.choose(&by_url(question), &candidates(&[0; 8])).unwrap();
        let first = choose(1);
        lanes[first.index].apply(event(&with_image("picture", 1), 32));
        let second = choose(2);
        assert_eq!((second.index, second.reason), (first.index, Reason::Overlap));
        assert_eq!((second.term.told, second.term.overlap), (736, 736));
        // What it was sent is remembered under our name, before and after.
        drop(lanes);
        let third = choose(3);
        assert!(third.index == first.index && third.term.told == 0 && third.term.overlap >= 640, "{third}");
    }

    #[test]
    fn prompts_are_watched_where_something_can_be_learned() {
        let router = router(RoutePolicy::MmKv);
        let mut lane = router.kv.lane(0, "0").unwrap();
        let watched = |asked: Asked| router.choose(&asked, &candidates(&[0])).unwrap().sent.is_some();
        assert!(!watched(Asked { checked: true, ..with_image("a", 1) }), "nothing tells of the worker");
        lane.set_view(View::Partial);
        assert!(watched(Asked { checked: true, ..with_image("a", 1) }));
        assert!(watched(Asked { named: false, ..with_image("a", 1) }));
        assert!(!watched(with_image("a", 1)));
    }

    #[test]
    fn a_decision_reads_as_a_header() {
        let decision = router(RoutePolicy::MmKv).choose(&with_image("a", 1), &candidates(&[1, 1])).unwrap();
        let expected = "policy=mm-kv; reason=affinity; tokens=800; overlap=0; told=0; media=0; load=1000; candidates=2";
        assert_eq!(decision.to_string(), expected);
    }
}
