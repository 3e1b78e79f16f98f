//! Values of msgpack, read one after another from bytes that may be anything.
//!
//! Reading takes memory in proportion to the bytes that are there, whatever lengths they announce.

use rmp::{
    Marker,
    decode::{self, Bytes},
};

/// How deep arrays and maps may nest in what is passed over.
const MAX_DEPTH: usize = 16;

/// What should stand there and does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misread(pub &'static str);

/// What was read, or what should have stood there.
pub type Read<T> = Result<T, Misread>;

/// See the module's documentation.
pub struct Reader<'a> {
    bytes: Bytes<'a>,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes: Bytes::new(bytes) }
    }

    pub fn unsigned(&mut self) -> Read<u64> {
        decode::read_int(&mut self.bytes).map_err(|_| Misread("an unsigned integer"))
    }

    pub fn signed(&mut self) -> Read<i64> {
        decode::read_int(&mut self.bytes).map_err(|_| Misread("an integer"))
    }

    /// 64 bits, whatever their sign.
    pub fn integer(&mut self) -> Read<u64> {
        match self.peek()? {
            Marker::FixNeg(_) | Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => {
                self.signed().map(i64::cast_unsigned)
            }
            _ => self.unsigned(),
        }
    }

    pub fn text(&mut self) -> Read<&'a str> {
        let (text, rest) = decode::read_str_from_slice(self.bytes.remaining_slice()).map_err(|_| Misread("a text"))?;
        self.bytes = Bytes::new(rest);
        Ok(text)
    }

    pub fn binary(&mut self) -> Read<&'a [u8]> {
        let length = decode::read_bin_len(&mut self.bytes).map_err(|_| Misread("bytes"))?;
        self.take(length as usize)
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.bytes.remaining_slice().split_at_checked(length).ok_or(Misread("it ends early"))?;
        self.bytes = Bytes::new(rest);
        Ok(taken)
    }

    /// The head of an array: how many elements follow.
    pub fn array(&mut self) -> Read<u32> {
        decode::read_array_len(&mut self.bytes).map_err(|_| Misread("an array"))
    }

    /// The head of a map: how many pairs of key and value follow.
    pub fn map(&mut self) -> Read<u32> {
        decode::read_map_len(&mut self.bytes).map_err(|_| Misread("a map"))
    }

    /// Grows with what is there, not with what is announced: an element takes a byte at least.
    pub fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let length = self.array()? as usize;
        let mut list = Vec::with_capacity(length.min(self.bytes.remaining_slice().len()).min(1 << 16));
        for _ in 0..length {
            list.push(element(self)?);
        }
        Ok(list)
    }

    /// A value, or nil.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.nil()? { Ok(None) } else { read(self).map(Some) }
    }

    /// Whether the next value was nil, and is read.
    pub fn nil(&mut self) -> Read<bool> {
        let nil = self.peek()? == Marker::Null;
        if nil {
            self.take(1)?;
        }
        Ok(nil)
    }

    /// What kind of value is next, unread.
    pub fn peek(&self) -> Read<Marker> {
        self.bytes.remaining_slice().first().map(|&byte| Marker::from_u8(byte)).ok_or(Misread("it ends early"))
    }

    /// Passes over one value.
    pub fn skip(&mut self) -> Read<()> {
        self.skip_at(0)
    }

    fn skip_at(&mut self, depth: usize) -> Read<()> {
        if depth > MAX_DEPTH {
            return Err(Misread("too deep"));
        }
        let values = match self.peek()? {
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => u64::from(self.array()?),
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => 2 * u64::from(self.map()?),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let length = decode::read_str_len(&mut self.bytes).map_err(|_| Misread("a text"))?;
                return self.take(length as usize).map(drop);
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => return self.binary().map(drop),
            marker => {
                self.take(1)?;
                let length = match marker {
                    Marker::U8 | Marker::I8 => 1,
                    Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
                    Marker::FixExt2 => 3,
                    Marker::U32 | Marker::I32 | Marker::F32 => 4,
                    Marker::FixExt4 => 5,
                    Marker::U64 | Marker::I64 | Marker::F64 => 8,
                    Marker::FixExt8 => 9,
                    Marker::FixExt16 => 17,
                    Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => return Err(Misread("an extension")),
                    _ => 0,
                };
                return self.take(length).map(drop);
            }
        };
        for _ in 0..values {
            self.skip_at(depth + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use serde_json::Value;

    /// JSON as msgpack; `{"$bin": "text"}` as bytes.
    pub(crate) fn msgpack(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, value);
        out
    }

    fn write(out: &mut Vec<u8>, value: &Value) {
        use rmp::encode;
        match value {
            Value::Null => encode::write_nil(out).unwrap(),
            Value::Bool(truth) => encode::write_bool(out, *truth).unwrap(),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => drop(encode::write_uint(out, number).unwrap()),
                (_, Some(number)) => drop(encode::write_sint(out, number).unwrap()),
                _ => encode::write_f64(out, number.as_f64().unwrap()).unwrap(),
            },
            Value::String(text) => encode::write_str(out, text).unwrap(),
            Value::Array(values) => {
                encode::write_array_len(out, values.len() as u32).unwrap();
                values.iter().for_each(|value| write(out, value));
            }
            Value::Object(map) if map.contains_key("$bin") => {
                encode::write_bin(out, map["$bin"].as_str().unwrap().as_bytes()).unwrap();
            }
            Value::Object(map) => {
                encode::write_map_len(out, map.len() as u32).unwrap();
                // `type` first, as msgspec has it.
                let (first, rest): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| *key == "type");
                for (key, value) in first.into_iter().chain(rest) {
                    encode::write_str(out, key).unwrap();
                    write(out, value);
                }
            }
        }
    }
}
