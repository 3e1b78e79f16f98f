//! Prompts on their way, held against what their worker says that it computes.
//!
//! A prompt that was sent to a worker is kept until shortly after its answer begins. An event of that worker tells the tokens
//! of blocks, how far from the beginning they stand, and where among them which images do. Two things are seen in it:
//!
//! - Whether the prompt is what was predicted: block by block, its token ids and the places of its images.
//! - What the worker calls an image that passes by URL ([`super::names`]): if all of the event stands in the prompt, at this place,
//!   with as many images in the same places, then they are the prompt's. Two prompts may differ in nothing but their images
//!   (one question about two pictures of one size); then an event says nothing about either, unless the name of one is known.
//!
//! Others may send a worker such a prompt too, while ours is on its way and already cached. What is learned then is wrong, and
//! lasts until the worker next names the image.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    events::{BlockExtra, Stored},
    names::{Before, ImageNames},
};
use crate::{
    observe,
    routing::prompt::{MmHash, PromptTokens},
    sync::Mutex,
};

/// A prompt may be queued as long.
const LIFE: Duration = Duration::from_secs(60);

/// Events come about when the first token does; no later than so.
const GRACE: Duration = Duration::from_secs(2);

/// Prompts of one stream of events; the oldest go first.
const MAX_PROMPTS: usize = 128;

/// Tokens of such prompts, of all streams together.
pub const MAX_TOKENS: usize = 16 << 20;

/// A prompt that was sent to a worker.
#[derive(Debug)]
pub struct SentPrompt {
    prompt: Arc<PromptTokens>,
    model: Option<String>,
    salt: Option<String>,
    /// Whether the worker knows the images by the names that we gave them.
    named: bool,
    /// Whether nobody else had requests on the worker when it was sent.
    alone: bool,
    sent: Instant,
    /// Milliseconds after that when its answer began; 0 before.
    answered: AtomicU64,
    /// Tokens of its beginning that the worker is known to hold, in whole blocks.
    computed: AtomicUsize,
    /// Tokens a block, once an event has told.
    block_size: AtomicUsize,
    /// The worker has computed a prompt that begins like it and goes on otherwise.
    diverged: AtomicBool,
}

/// What is known of a prompt when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentAs<'a> {
    pub model: Option<&'a str>,
    pub salt: Option<&'a str>,
    pub named: bool,
    pub alone: bool,
    /// Tokens of its beginning that the worker holds already.
    pub held: usize,
}

impl SentPrompt {
    pub fn new(prompt: Arc<PromptTokens>, known: SentAs<'_>) -> Self {
        SentPrompt {
            prompt,
            model: known.model.map(str::to_owned),
            salt: known.salt.map(str::to_owned),
            named: known.named,
            alone: known.alone,
            sent: Instant::now(),
            answered: AtomicU64::new(0),
            computed: AtomicUsize::new(known.held),
            block_size: AtomicUsize::new(1),
            diverged: AtomicBool::new(false),
        }
    }

    /// Its answer has begun, so its prompt is computed.
    pub fn answered(&self) {
        self.answered.store((self.sent.elapsed().as_millis() as u64).max(1), Ordering::Relaxed);
    }

    /// Whether the worker is known to hold all whole blocks of so many of its first tokens, by their ids.
    pub fn is_computed(&self, tokens: usize) -> bool {
        let size = self.block_size.load(Ordering::Relaxed);
        self.computed.load(Ordering::Relaxed) / size >= tokens / size
    }

    /// Whether the worker has computed something else that begins like it, and nobody but us could have sent it that.
    pub fn diverged(&self) -> bool {
        self.diverged.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        let age = self.sent.elapsed();
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        age > LIFE || (!answered.is_zero() && age > answered + GRACE)
    }

    /// How many of an event's blocks stand in the prompt at `at` (counted in tokens), from the first on.
    fn agree(&self, at: usize, stored: &Stored) -> usize {
        let size = stored.block_size.max(1);
        if at == 0 && self.salt.as_deref() != stored.salt() {
            return 0;
        }
        let Some(ids) = self.prompt.ids.get(at..) else { return 0 };
        let blocks = ids.chunks_exact(size).zip(stored.token_ids.chunks_exact(size)).enumerate();
        let same = blocks.take_while(|(block, (ours, theirs))| {
            ours == theirs && self.has_images(at + block * size, size, stored.extra.get(*block))
        });
        same.count()
    }

    /// Whether the images of the block at `start` stand where the prompt's do. Older workers do not tell.
    fn has_images(&self, start: usize, size: usize, extra: Option<&BlockExtra>) -> bool {
        let Some(extra) = extra else { return true };
        let ours = self.prompt.media_within(start, start + size).map(|span| span.offset as i64 - start as i64);
        ours.eq(extra.media.iter().map(|(_, offset)| *offset))
    }

    /// The prompt's images of which an event tells that stands in it whole: our names and the worker's. `None` if it calls one
    /// image by two names.
    fn named_by(&self, at: usize, stored: &Stored) -> Option<Vec<(MmHash, MmHash)>> {
        let size = stored.block_size;
        let mut images: Vec<(MmHash, MmHash)> = Vec::new();
        for (block, extra) in stored.extra.iter().enumerate() {
            let start = at + block * size;
            let ours = self.prompt.media_within(start, start + size).map(|span| span.hash);
            for (ours, (theirs, _)) in ours.zip(&extra.media) {
                match images.iter().find(|(known, _)| *known == ours) {
                    None => images.push((ours, *theirs)),
                    Some((_, known)) if known == theirs => {}
                    Some(_) => return None,
                }
            }
        }
        Some(images)
    }
}

/// The prompts that are on their way to one stream of events.
#[derive(Debug, Default)]
pub struct SentPrompts {
    prompts: Mutex<VecDeque<Arc<SentPrompt>>>,
    /// How many there are: most events find none.
    count: AtomicUsize,
}

impl SentPrompts {
    /// One more, which takes its part of so many tokens.
    pub fn send(&self, prompt: &Arc<SentPrompt>, max_tokens: usize) {
        let mut prompts = self.prompts.lock();
        prompts.push_back(prompt.clone());
        let mut tokens: usize = prompts.iter().map(|prompt| prompt.prompt.ids.len()).sum();
        while tokens > max_tokens || prompts.len() > MAX_PROMPTS {
            let Some(oldest) = prompts.pop_front() else { break };
            tokens -= oldest.prompt.ids.len();
        }
        self.count.store(prompts.len(), Ordering::Relaxed);
    }

    /// The worker has computed these blocks, which stand at `at` of a prompt, in tokens.
    pub fn computed(&self, at: usize, stored: &Stored, names: &ImageNames) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut prompts = self.prompts.lock();
        prompts.retain(|prompt| !prompt.is_over());
        let (blocks, size) = (stored.hashes.len(), stored.block_size.max(1));
        let mut whole: Vec<&SentPrompt> = Vec::new();
        let mut in_part: Vec<&SentPrompt> = Vec::new();
        for prompt in prompts.iter() {
            let agree = prompt.agree(at, stored);
            let until = at + agree * size;
            prompt.block_size.store(size, Ordering::Relaxed);
            if agree > 0 && at <= prompt.computed.load(Ordering::Relaxed) {
                prompt.computed.fetch_max(until, Ordering::Relaxed);
            }
            // Many prompts begin with the same text. One that begins with the same text, has an image in the same place,
            // and then differs, is this one as it was not predicted.
            let into_image = prompt.prompt.media.first().is_some_and(|span| span.offset < until);
            match agree == blocks {
                true => whole.push(prompt),
                false if into_image && prompt.alone => in_part.push(prompt),
                false => {}
            }
        }
        if whole.is_empty() {
            in_part.iter().for_each(|prompt| prompt.diverged.store(true, Ordering::Relaxed));
        }
        learn(&whole, at, stored, names);
        // Those whose images may turn out to have other names than are known are kept until they are over.
        prompts.retain(|prompt| !(prompt.named && prompt.is_computed(prompt.prompt.ids.len())));
        self.count.store(prompts.len(), Ordering::Relaxed);
    }
}

/// Learns the names of images from an event that stands whole in each of these prompts.
fn learn(prompts: &[&SentPrompt], at: usize, stored: &Stored, names: &ImageNames) {
    let images = |prompt: &&SentPrompt| {
        let images = prompt.named_by(at, stored).filter(|images| !images.is_empty() && !prompt.named)?;
        Some((prompt.model.clone(), images))
    };
    let mut possible: Vec<_> = prompts.iter().filter_map(images).collect();
    // It is none of those whose images are known by other names, unless there are no others.
    let fits = |(model, images): &(Option<String>, Vec<(MmHash, MmHash)>)| {
        let known = |ours| names.get(model.as_deref(), ours);
        images.iter().all(|&(ours, theirs)| known(ours).is_none_or(|known| known == theirs))
    };
    if possible.iter().any(fits) {
        possible.retain(fits);
    }
    possible.dedup();
    let Some((model, images)) = possible.pop() else { return };
    if !possible.is_empty() {
        return observe::image_name("ambiguous");
    }
    for (ours, theirs) in images {
        match names.learn(model.as_deref(), ours, theirs) {
            Before::Unknown => observe::image_name("learned"),
            Before::Another => observe::image_name("changed"),
            Before::Known => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::routing::prompt::MediaSpan;

    const SIZE: usize = 4;
    const PLACEHOLDER: u32 = 9;

    fn hash(name: &str) -> MmHash {
        MmHash::of_identifier(name)
    }

    /// Text, images of so many tokens with a token after each, and a question.
    fn prompt(images: &[(&str, usize)], question: u32) -> PromptTokens {
        let mut prompt = PromptTokens { ids: vec![1; 5], media: Vec::new() };
        for &(name, length) in images {
            prompt.media.push(MediaSpan { hash: hash(name), offset: prompt.ids.len(), length });
            prompt.ids.extend(std::iter::repeat_n(PLACEHOLDER, length));
            prompt.ids.push(2);
        }
        prompt.ids.extend([question; 6]);
        prompt
    }

    /// What a worker says when it has computed the blocks from `first` on, whose images it calls so.
    fn event(prompt: &PromptTokens, first: usize, theirs: &[&str]) -> Stored {
        let blocks = first..prompt.ids.len() / SIZE;
        let extra = blocks.clone().map(|block| {
            let start = block * SIZE;
            let name =
                |span: &MediaSpan| theirs[prompt.media.iter().position(|other| other.offset == span.offset).unwrap()];
            let within = prompt.media_within(start, start + SIZE);
            let media = within.map(|span| (hash(name(span)), span.offset as i64 - start as i64)).collect();
            BlockExtra { media, ..BlockExtra::default() }
        });
        Stored {
            extra: extra.collect(),
            hashes: blocks.clone().map(|block| block as u64).collect(),
            token_ids: prompt.ids[first * SIZE..blocks.end * SIZE].to_vec(),
            block_size: SIZE,
            ..Stored::default()
        }
    }

    fn send(to: &SentPrompts, prompt: &PromptTokens) -> Arc<SentPrompt> {
        let sent = Arc::new(SentPrompt::new(Arc::new(prompt.clone()), SentAs { alone: true, ..SentAs::default() }));
        to.send(&sent, 1000);
        sent
    }

    #[test]
    fn the_name_of_an_image_is_learned_from_the_event_of_its_prompt() {
        let (sent, names) = (SentPrompts::default(), ImageNames::default());
        let ours = prompt(&[("url", 10)], 7);
        let watched = send(&sent, &ours);
        sent.computed(0, &event(&ours, 0, &["a"]), &names);
        assert_eq!(names.get(None, hash("url")), Some(hash("a")));
        assert!(watched.is_computed(ours.ids.len()) && !watched.diverged());
        // The picture behind the URL has changed.
        send(&sent, &ours);
        sent.computed(0, &event(&ours, 0, &["b"]), &names);
        assert_eq!(names.get(None, hash("url")), Some(hash("b")));
    }

    #[test]
    fn an_event_that_goes_on_from_what_was_cached_names_the_images_in_it() {
        let (sent, names) = (SentPrompts::default(), ImageNames::default());
        let ours = prompt(&[("first", 8), ("second", 8)], 7);
        send(&sent, &ours);
        sent.computed(4 * SIZE, &event(&ours, 4, &["a", "b"]), &names);
        assert_eq!([names.get(None, hash("first")), names.get(None, hash("second"))], [None, Some(hash("b"))]);
    }

    #[test]
    fn nothing_is_learned_from_an_event_of_another_prompt() {
        let ours = prompt(&[("url", 10)], 7);
        let mut salted = event(&ours, 0, &["a"]);
        salted.extra[0].texts.push("salt".into());
        let mut one_more = event(&ours, 0, &["a"]);
        one_more.extra[1].media.push((hash("b"), 3));
        let mut two_names = event(&ours, 0, &["a"]);
        two_names.extra[2].media[0].0 = hash("b");
        let others = [
            (0, event(&prompt(&[("url", 10)], 8), 0, &["a"])),
            (0, event(&prompt(&[("url", 14)], 7), 0, &["a"])),
            (SIZE, event(&ours, 0, &["a"])),
            (0, event(&prompt(&[("url", 10)], 7), 1, &["a"])),
            (0, salted),
            (0, one_more),
            (0, two_names),
            (1 << 40, event(&ours, 0, &["a"])),
        ];
        for (at, event) in others {
            let (sent, names) = (SentPrompts::default(), ImageNames::default());
            send(&sent, &ours);
            sent.computed(at, &event, &names);
            assert_eq!(names.get(None, hash("url")), None, "{at} {event:?}");
        }
    }

    #[test]
    fn of_two_prompts_that_differ_in_their_images_alone_one_must_be_known() {
        let (sent, names) = (SentPrompts::default(), ImageNames::default());
        let (one, two) = (prompt(&[("one", 10)], 7), prompt(&[("two", 10)], 7));
        send(&sent, &one);
        send(&sent, &two);
        send(&sent, &two);
        sent.computed(0, &event(&one, 0, &["a"]), &names);
        assert_eq!([names.get(None, hash("one")), names.get(None, hash("two"))], [None, None]);
        names.learn(None, hash("one"), hash("a"));
        sent.computed(0, &event(&two, 0, &["b"]), &names);
        assert_eq!([names.get(None, hash("one")), names.get(None, hash("two"))], [Some(hash("a")), Some(hash("b"))]);
    }

    #[test]
    fn a_prompt_that_goes_on_otherwise_than_predicted_is_told_from_others() {
        let (sent, names) = (SentPrompts::default(), ImageNames::default());
        let ours = prompt(&[("url", 10)], 7);
        let watched = send(&sent, &ours);
        sent.computed(0, &event(&prompt(&[], 7), 0, &[]), &names);
        assert!(!watched.diverged(), "it begins with the same text, as many do");
        sent.computed(0, &event(&prompt(&[("url", 11)], 7), 0, &["a"]), &names);
        assert!(watched.diverged() && !watched.is_computed(ours.ids.len()) && watched.is_computed(4));
        // What stands whole in another prompt is of that one.
        let (sent, watched) = (SentPrompts::default(), ours);
        let watched = send(&sent, &watched);
        let other = prompt(&[("other", 11)], 7);
        send(&sent, &other);
        sent.computed(0, &event(&other, 0, &["b"]), &names);
        assert!(!watched.diverged());
    }

    #[test]
    fn chunks_and_blocks_that_were_held_add_up_to_a_prompt() {
        let (sent, names) = (SentPrompts::default(), ImageNames::default());
        let ours = prompt(&[("url", 10)], 7);
        let known = SentAs { held: SIZE, ..SentAs::default() };
        let watched = Arc::new(SentPrompt::new(Arc::new(ours.clone()), known));
        sent.send(&watched, 1000);
        let mut first = event(&ours, 1, &["a"]);
        first.hashes.truncate(2);
        first.token_ids.truncate(2 * SIZE);
        sent.computed(4 * SIZE, &event(&ours, 4, &["a"]), &names);
        assert!(!watched.is_computed(ours.ids.len()), "there is a gap");
        sent.computed(SIZE, &first, &names);
        sent.computed(3 * SIZE, &event(&ours, 3, &["a"]), &names);
        assert!(watched.is_computed(ours.ids.len()));
    }

    #[test]
    fn memory_is_bounded() {
        let sent = SentPrompts::default();
        for _ in 0..2 * MAX_PROMPTS {
            send(&sent, &prompt(&[], 7));
        }
        assert_eq!(sent.prompts.lock().len(), 1000 / 11);
        sent.send(&Arc::new(SentPrompt::new(Arc::default(), SentAs::default())), 0);
        assert_eq!(sent.prompts.lock().len(), 1, "an empty one");
    }

    proptest! {
        /// Requests with one of few images of one of two sizes, whose worker computes them whole in any order, some while others
        /// are on their way: a name that was learned is the right one.
        #[test]
        fn what_is_learned_is_true(requests in proptest::collection::vec((0usize..6, 0u32..2, any::<bool>()), 1..40)) {
            const URLS: [&str; 6] = ["u0", "u1", "u2", "u3", "u4", "u5"];
            const PICTURES: [&str; 6] = ["p0", "p1", "p2", "p3", "p4", "p5"];
            let (sent, names) = (SentPrompts::default(), ImageNames::default());
            let mut waiting = Vec::new();
            for (image, question, now) in requests {
                let ours = prompt(&[(URLS[image], 8 + image % 2)], question);
                waiting.push((image, ours.clone()));
                send(&sent, &ours);
                if now {
                    for (image, ours) in waiting.drain(..).rev() {
                        sent.computed(0, &event(&ours, 0, &[PICTURES[image]]), &names);
                    }
                }
                for (url, picture) in URLS.iter().zip(PICTURES) {
                    prop_assert!(names.get(None, hash(url)).is_none_or(|theirs| theirs == hash(picture)));
                }
            }
        }
    }
}
