//! Any MessagePack value, read and written by a library that the code under test doesn't use.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Uint(u64),
    /// Negative.
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
}

use Value::{List, Map, Nil, Text, Uint};

impl Value {
    pub(super) fn read(bytes: &[u8]) -> Self {
        rmp_serde::from_slice(bytes).expect("MessagePack")
    }

    pub(super) fn write(&self) -> Vec<u8> {
        rmp_serde::to_vec(self).expect("any value can be written")
    }

    pub(super) fn text(text: &str) -> Self {
        Text(text.to_owned())
    }

    /// The text, or nil.
    pub(super) fn maybe(text: Option<&str>) -> Self {
        text.map_or(Nil, Self::text)
    }

    pub(super) fn list(values: impl IntoIterator<Item = Self>) -> Self {
        List(values.into_iter().collect())
    }

    pub(super) fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let pairs = pairs.into_iter();
        Map(pairs.map(|(key, value)| (Self::text(key), value)).collect())
    }

    /// The value of this name in a map; nil if there is none.
    pub(super) fn get(&self, name: &str) -> &Self {
        let Map(pairs) = self else { return &Nil };
        let found = pairs.iter().find(|(key, _)| *key == Text(name.to_owned()));
        found.map_or(&Nil, |(_, value)| value)
    }

    pub(super) fn items(&self) -> &[Self] {
        match self {
            List(values) => values,
            _ => &[],
        }
    }

    pub(super) fn uint(&self) -> Option<u64> {
        match self {
            Uint(value) => Some(*value),
            _ => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Uint(value) => to.serialize_u64(*value),
            Self::Int(value) => to.serialize_i64(*value),
            Self::Float(value) => to.serialize_f64(*value),
            Self::Text(text) => to.serialize_str(text),
            Self::Bytes(bytes) => to.serialize_bytes(bytes),
            Self::List(values) => {
                let mut list = to.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(value)?;
                }
                list.end()
            }
            Self::Map(pairs) => {
                let mut map = to.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Nil)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Uint(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Int(value), Uint))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::text(text))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(bytes.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Map(pairs))
    }
}
