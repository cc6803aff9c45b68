//! An engine's event as it was sent: which fields it has, by name or by position.
//!
//! Engines write an event as a map with a `type`, or as an array whose first element is the
//! type and whose order is that of the fields in the engine's source. Fields came one after
//! the other over the years; unknown keys and elements past the known ones are passed over.

use super::super::msgpack::{Malformed, Reader, Token};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stored,
    Removed,
    Cleared,
    /// A type that is not known here.
    Unknown,
}

/// The fields of one event that mean something here; `None` where absent or nil.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) block_hashes: Option<Reader<'a>>,
    pub(super) parent: Option<Reader<'a>>,
    pub(super) tokens: Option<Reader<'a>>,
    pub(super) block_size: Option<Reader<'a>>,
    pub(super) lora_id: Option<Reader<'a>>,
    pub(super) medium: Option<Reader<'a>>,
    pub(super) lora_name: Option<Reader<'a>>,
    pub(super) cache_salt: Option<Reader<'a>>,
    pub(super) extra_keys: Option<Reader<'a>>,
    pub(super) mm_infos: Option<Reader<'a>>,
    pub(super) group: Option<Reader<'a>>,
    pub(super) attention: Option<Reader<'a>>,
    pub(super) locality: Option<Reader<'a>>,
    pub(super) ownership: Option<Reader<'a>>,
}

/// Reads an event from its first byte on.
pub(super) fn read<'a>(mut event: Reader<'a>) -> Result<(Kind, Fields<'a>), Malformed> {
    match event.token()? {
        Token::Map(pairs) => read_map(event, pairs),
        Token::Array(length) => read_array(event, length),
        _ => Err(Malformed::Type),
    }
}

fn read_map<'a>(mut event: Reader<'a>, pairs: u32) -> Result<(Kind, Fields<'a>), Malformed> {
    let mut kind = None;
    let mut fields = Fields::default();
    for _ in 0..pairs {
        let key = event.token()?;
        let value = event.value()?;
        let Token::Str(key) = key else {
            return Err(Malformed::Type);
        };
        if key == b"type" {
            kind = Some(kind_of(value)?);
        } else if let Some(field) = fields.by_name(key) {
            *field = present(value);
        }
    }
    Ok((kind.ok_or(Malformed::Type)?, fields))
}

fn read_array<'a>(mut event: Reader<'a>, length: u32) -> Result<(Kind, Fields<'a>), Malformed> {
    if length == 0 {
        return Err(Malformed::Type);
    }
    let kind = kind_of(event.value()?)?;
    let mut values = Values {
        event,
        left: length - 1,
    };
    let mut fields = Fields::default();
    match kind {
        Kind::Stored => fields.stored(&mut values)?,
        Kind::Removed => {
            fields.block_hashes = values.next()?;
            fields.medium = values.next()?;
            fields.trailing(&mut values)?;
        }
        Kind::Cleared => fields.ownership = values.next()?,
        Kind::Unknown => {}
    }
    Ok((kind, fields))
}

fn kind_of(mut value: Reader<'_>) -> Result<Kind, Malformed> {
    match value.token()? {
        Token::Str(b"BlockStored") => Ok(Kind::Stored),
        Token::Str(b"BlockRemoved") => Ok(Kind::Removed),
        Token::Str(b"AllBlocksCleared") => Ok(Kind::Cleared),
        Token::Str(_) => Ok(Kind::Unknown),
        _ => Err(Malformed::Type),
    }
}

fn head(value: Reader<'_>) -> Token<'_> {
    let mut value = value;
    // A reader of a value has been walked once, so it has a first token.
    value.token().unwrap_or(Token::Nil)
}

fn present(value: Reader<'_>) -> Option<Reader<'_>> {
    (head(value) != Token::Nil).then_some(value)
}

/// The elements of an array event that are left.
struct Values<'a> {
    event: Reader<'a>,
    left: u32,
}

impl<'a> Values<'a> {
    /// The next element; `None` when it is nil or there is none.
    fn next(&mut self) -> Result<Option<Reader<'a>>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.event.value().map(present)
    }
}

impl<'a> Fields<'a> {
    fn by_name(&mut self, name: &[u8]) -> Option<&mut Option<Reader<'a>>> {
        Some(match name {
            b"block_hashes" => &mut self.block_hashes,
            b"parent_block_hash" => &mut self.parent,
            b"token_ids" => &mut self.tokens,
            b"block_size" => &mut self.block_size,
            b"lora_id" => &mut self.lora_id,
            b"medium" => &mut self.medium,
            b"lora_name" => &mut self.lora_name,
            b"cache_salt" => &mut self.cache_salt,
            b"extra_keys" => &mut self.extra_keys,
            b"block_mm_infos" => &mut self.mm_infos,
            b"group_idx" => &mut self.group,
            b"kv_cache_spec_kind" => &mut self.attention,
            b"locality" => &mut self.locality,
            b"ownership" | b"source_kind" => &mut self.ownership,
            _ => return None,
        })
    }

    fn stored(&mut self, values: &mut Values<'a>) -> Result<(), Malformed> {
        self.block_hashes = values.next()?;
        self.parent = values.next()?;
        self.tokens = values.next()?;
        self.block_size = values.next()?;
        self.lora_id = values.next()?;
        self.medium = values.next()?;
        let name_or_metadata = values.next()?;
        match name_or_metadata.map(head) {
            Some(Token::Map(_)) => self.metadata(name_or_metadata)?,
            _ => self.lora_name = name_or_metadata,
        }
        self.extra_keys = values.next()?;
        self.trailing(values)
    }

    /// SGLang writes a map where vLLM writes the adapter's name.
    fn metadata(&mut self, map: Option<Reader<'a>>) -> Result<(), Malformed> {
        let Some(mut map) = map else { return Ok(()) };
        let Token::Map(pairs) = map.token()? else {
            return Err(Malformed::Type);
        };
        for _ in 0..pairs {
            let key = map.value()?;
            let value = map.value()?;
            match head(key) {
                Token::Str(b"cache_salt") => self.cache_salt = present(value),
                Token::Str(b"lora_name") => self.lora_name = present(value),
                _ => {}
            }
        }
        Ok(())
    }

    /// Optional fields at the end: group, attention, window, locality, ownership, in this
    /// order. Older engines left out what they had not, so that only types tell.
    fn trailing(&mut self, values: &mut Values<'a>) -> Result<(), Malformed> {
        let mut found = [None; 5];
        for slot in &mut found {
            *slot = values.next()?;
        }
        let fits = |(slot, value): (usize, &Option<Reader<'a>>)| match value.map(head) {
            None => true,
            Some(Token::Uint(_)) => matches!(slot, 0 | 2),
            Some(Token::Str(_)) => matches!(slot, 1 | 3 | 4),
            Some(_) => false,
        };
        if found.iter().enumerate().all(fits) {
            [self.group, self.attention, _, self.locality, self.ownership] = found;
            return Ok(());
        }
        for value in found.into_iter().flatten() {
            match head(value) {
                Token::Uint(_) if self.group.is_none() => self.group = Some(value),
                Token::Str(b"LOCAL" | b"REMOTE") => self.locality = Some(value),
                Token::Str(_) if self.attention.is_none() => self.attention = Some(value),
                Token::Str(_) => self.ownership = Some(value),
                Token::Array(_) => self.mm_infos = Some(value),
                _ => {}
            }
        }
        Ok(())
    }
}
