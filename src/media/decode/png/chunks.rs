//! The chunks of a PNG, read as the reference reads them.
//!
//! Checksums are checked before the image data and not after; chunks after the image data still count (transparency,
//! EXIF, XMP); a chunk that is too short for its purpose refuses the file, an unknown one never does. Compressed texts
//! are inflated only as far as is needed to refuse the bombs that the reference refuses.

use std::ops::Range;

use super::super::bytes::Endian::Big;
use super::super::orientation::Orientation;
use super::super::sniff::Format;
use super::super::{DecodeError, DecodeLimits, Size};
use super::inflate::{Inflater, Keep};
use super::pixels::{ColourMode, Transparency};
use super::texts::Texts;

pub(super) const SIGNATURE_BYTES: usize = 8;

/// What the chunks say.
pub(super) struct Chunks<'a> {
    pub(super) size: Size,
    pub(super) mode: ColourMode,
    pub(super) interlaced: bool,
    pub(super) palette: Option<&'a [u8]>,
    pub(super) transparency: Option<Transparency<'a>>,
    pub(super) orientation: Orientation,
    /// Where the first chunk of image data begins.
    pub(super) data_at: usize,
    /// The rectangle that the image data fills, where it is the first frame of an animation.
    pub(super) frame: Option<Frame>,
}

/// A rectangle of an animation's canvas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) top: u32,
    pub(super) left: u32,
    pub(super) size: Size,
}

/// A chunk: its type, and where its content is, which may end beyond the file.
pub(super) struct Chunk {
    pub(super) name: [u8; 4],
    pub(super) content: Range<usize>,
}

impl Chunk {
    /// The chunk at `at`; `None` where the file ends or something else begins.
    pub(super) fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let length = Big.u32(bytes, at)? as usize;
        let name: [u8; 4] = bytes.get(at + 4..at + 8)?.try_into().ok()?;
        name.iter()
            .all(|&c| c.is_ascii_alphanumeric() || c == b'_')
            .then_some(Self { name, content: at + 8..at + 8 + length })
    }

    /// Whether it carries image data where image data has begun.
    pub(super) fn is_data(&self) -> bool {
        matches!(&self.name, b"IDAT" | b"DDAT" | b"fdAT")
    }

    /// Where the next one begins.
    pub(super) fn end(&self) -> usize {
        self.content.end + 4
    }
}

/// Reads all chunks of `bytes`, which begin with PNG's signature.
pub(super) fn read<'a>(bytes: &'a [u8], limits: &DecodeLimits) -> Result<Chunks<'a>, DecodeError> {
    let mut reader = Reader::new(bytes, Inflater::new(limits.max_metadata_bytes));
    let mut at = SIGNATURE_BYTES;
    // Up to the image data, every chunk has to be whole.
    let first = loop {
        let chunk = Chunk::at(bytes, at).ok_or(DecodeError::Truncated(Format::Png))?;
        match &chunk.name {
            // Before a header, the reference passes over image data.
            b"IDAT" | b"fdAT" if reader.mode().is_some() => break chunk,
            b"IEND" => return Err(broken("no image data")),
            _ => {}
        }
        let content = bytes.get(chunk.content.clone()).ok_or(DecodeError::Truncated(Format::Png))?;
        let sum = Big.u32(bytes, chunk.content.end).ok_or(DecodeError::Truncated(Format::Png))?;
        reader.chunk(chunk.name, content)?;
        if crc32fast::hash(&bytes[at + 4..chunk.content.end]) != sum {
            return Err(broken("a wrong checksum"));
        }
        at = chunk.end();
    };
    let header = reader.header.take().ok_or_else(|| broken("no header"))?;
    let mode = header.mode.ok_or_else(|| broken("an unknown combination of depth and colour"))?;
    if header.size.pixels() == 0 {
        return Err(broken("no pixels"));
    }
    let frame = reader.frame;
    if frame.is_some_and(|frame| frame.size.pixels() == 0) {
        return Err(broken("an empty frame"));
    }
    let default_picture = frame.is_none() && &first.name == b"IDAT";
    let animated = reader.frames.is_some_and(|count| count > 1 || default_picture);
    let palette = reader.palette;
    let data_at = at;
    at = reader.pass_data(at)?;
    // What follows may stop anywhere, but not inside a chunk.
    reader.header = Some(Header { size: header.size, mode: Some(mode), interlaced: header.interlaced });
    while let Some(chunk) = Chunk::at(bytes, at) {
        if &chunk.name == b"IEND" || (&chunk.name == b"fcTL" && animated) {
            break;
        }
        let content = bytes.get(chunk.content.clone()).ok_or(DecodeError::Truncated(Format::Png))?;
        reader.chunk(chunk.name, content)?;
        at = chunk.end();
    }
    Ok(Chunks {
        size: header.size,
        mode,
        interlaced: header.interlaced,
        palette,
        transparency: reader.transparency,
        orientation: reader.texts.orientation(),
        data_at,
        frame,
    })
}

pub(super) fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Png, cause)
}

struct Header {
    size: Size,
    mode: Option<ColourMode>,
    interlaced: bool,
}

struct Reader<'a> {
    bytes: &'a [u8],
    inflater: Inflater,
    header: Option<Header>,
    palette: Option<&'a [u8]>,
    transparency: Option<Transparency<'a>>,
    texts: Texts<'a>,
    /// Frames that an animation announces.
    frames: Option<u32>,
    frame: Option<Frame>,
    /// Number of the last animation chunk.
    sequence: Option<u32>,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], inflater: Inflater) -> Self {
        Self {
            bytes,
            inflater,
            header: None,
            palette: None,
            transparency: None,
            texts: Texts::default(),
            frames: None,
            frame: None,
            sequence: None,
        }
    }

    /// Passes over the consecutive chunks of image data; the last may be cut short, which decoding will notice.
    fn pass_data(&mut self, mut at: usize) -> Result<usize, DecodeError> {
        while let Some(chunk) = Chunk::at(self.bytes, at).filter(Chunk::is_data) {
            if &chunk.name == b"fdAT" {
                let content = self.bytes.get(chunk.content.start..).unwrap_or_default();
                self.animation_data(content.get(..chunk.content.len()).unwrap_or(content))?;
            }
            at = chunk.end();
        }
        Ok(at)
    }

    /// Takes in one chunk outside the image data.
    fn chunk(&mut self, name: [u8; 4], content: &'a [u8]) -> Result<(), DecodeError> {
        let at_least = |length: usize| if content.len() < length { Err(broken("a short chunk")) } else { Ok(()) };
        match &name {
            b"IHDR" => {
                at_least(13)?;
                let header = read_header(content)?;
                // A second header takes the place of the first, but for a mode that it does not have.
                let mode = header.mode.or(self.mode());
                let interlaced = header.interlaced || self.header.as_ref().is_some_and(|first| first.interlaced);
                self.header = Some(Header { mode, interlaced, ..header });
            }
            b"PLTE" if self.mode().is_some_and(ColourMode::is_palette) => self.palette = Some(content),
            b"tRNS" => {
                if let Some(mode) = self.mode() {
                    self.transparency = Transparency::read(mode, content)
                        .ok_or_else(|| broken("a short transparency chunk"))?
                        .or(self.transparency);
                }
            }
            b"gAMA" => at_least(4)?,
            b"cHRM" => at_least(32)?,
            b"sRGB" => at_least(1)?,
            b"pHYs" => at_least(9)?,
            b"iCCP" => self.profile(content)?,
            b"tEXt" => self.texts.plain(content),
            b"zTXt" => self.texts.compressed(content, &mut self.inflater)?,
            b"iTXt" => self.texts.international(content, &mut self.inflater)?,
            b"eXIf" => self.texts.exif(content),
            b"acTL" => {
                at_least(8)?;
                let count = Big.u32(content, 0).filter(|count| (1..=0x8000_0000).contains(count));
                // A second announcement takes back the first.
                match (self.frames, count) {
                    (Some(_), _) => self.frames = None,
                    (None, Some(count)) => self.frames = Some(count),
                    (None, None) => {}
                }
            }
            b"fcTL" => self.frame_control(content)?,
            b"fdAT" => self.animation_data(content)?,
            _ => {}
        }
        Ok(())
    }

    fn mode(&self) -> Option<ColourMode> {
        self.header.as_ref()?.mode
    }

    fn frame_control(&mut self, content: &[u8]) -> Result<(), DecodeError> {
        let word = |index: usize| Big.u32(content, index * 4).ok_or_else(|| broken("a short frame control"));
        let (sequence, width, height, left, top) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
        if content.len() < 26 {
            return Err(broken("a short frame control"));
        }
        if sequence != self.sequence.map_or(0, |last| last.wrapping_add(1)) {
            return Err(broken("animation chunks out of order"));
        }
        self.sequence = Some(sequence);
        let canvas = self.header.as_ref().map_or(Size { height: 0, width: 0 }, |header| header.size);
        let fits = |from: u32, length: u32, whole: u32| u64::from(from) + u64::from(length) <= u64::from(whole);
        if !fits(left, width, canvas.width) || !fits(top, height, canvas.height) {
            return Err(broken("a frame outside the canvas"));
        }
        self.frame = Some(Frame { top, left, size: Size { height, width } });
        Ok(())
    }

    fn animation_data(&mut self, content: &[u8]) -> Result<(), DecodeError> {
        let sequence = Big.u32(content, 0).ok_or_else(|| broken("short animation data"))?;
        if self.sequence.is_none_or(|last| last.checked_add(1) != Some(sequence)) {
            return Err(broken("animation chunks out of order"));
        }
        self.sequence = Some(sequence);
        Ok(())
    }

    fn profile(&mut self, content: &[u8]) -> Result<(), DecodeError> {
        // Where no NUL ends the name, the reference takes the first byte for the method.
        let method_at = content.iter().position(|&byte| byte == 0).map_or(0, |nul| nul + 1);
        match content.get(method_at) {
            Some(0) => self.inflater.inflate(&content[method_at + 1..], Keep::Nothing).map(drop),
            _ => Err(broken("a profile with an unknown compression")),
        }
    }
}

fn read_header(content: &[u8]) -> Result<Header, DecodeError> {
    let (Some(width), Some(height)) = (Big.u32(content, 0), Big.u32(content, 4)) else {
        return Err(broken("a short header"));
    };
    if content[11] != 0 {
        return Err(broken("an unknown filter method"));
    }
    let mode = ColourMode::read(content[8], content[9]);
    Ok(Header { size: Size { height, width }, mode, interlaced: content[12] != 0 })
}
