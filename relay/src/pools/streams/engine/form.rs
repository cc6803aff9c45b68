//! How an engine writes what it says.

use kvgrid_core::event::Tier;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::super::value::Value;
use super::super::value::Value::{Bytes as Binary, Float, Int, List, Nil, Uint};
use super::{BLOCK_SIZE, Engine, Name, Names, Run, Salts};

impl Engine {
    pub(super) fn batch(&mut self, events: Vec<Value>, rank: u32) -> Value {
        self.said += 1;
        // No two messages are alike, not even in two lives.
        let at = Float(f64::from(self.said) + self.dice.random::<f64>());
        let events = List(events);
        let named = Uint(rank.into());
        match self.dice.random_range(0..4) {
            0 if rank == self.rank => List(vec![at, events]),
            1 if rank == self.rank => List(vec![at, events, Nil]),
            2 => Value::map([
                ("ts", at),
                ("events", events),
                ("data_parallel_rank", named),
            ]),
            _ => List(vec![at, events, named]),
        }
    }

    pub(super) fn fields(&mut self, run: &Run) -> Vec<(&'static str, Value)> {
        let told = run
            .salt
            .filter(|_| !(run.inherits && self.habits.salts == Salts::Inherited));
        let by_field = self.has_salt_field() && self.dice.random();
        let keys = self.extra_keys(run, told.filter(|_| !by_field));
        let tokens: Vec<Value> = run
            .tokens
            .iter()
            .map(|token| Uint((*token).into()))
            .collect();
        let tokens = match self.habits.eagle {
            true => tokens.windows(2).map(|pair| List(pair.to_vec())).collect(),
            false => tokens,
        };
        let parent = run.parent.as_ref().map_or(Nil, |name| self.wire(name));
        vec![
            ("block_hashes", self.wires(&run.names)),
            ("parent_block_hash", parent),
            ("token_ids", List(tokens)),
            ("block_size", Uint(BLOCK_SIZE as u64)),
            ("lora_id", if run.lora.is_some() { Uint(4) } else { Nil }),
            ("medium", self.medium(run.place.tier)),
            ("lora_name", Value::maybe(run.lora)),
            ("extra_keys", keys),
            ("cache_salt", Value::maybe(told.filter(|_| by_field))),
            ("group_idx", self.habits.full_group.map_or(Nil, Uint)),
            (
                "kv_cache_spec_kind",
                match self.habits.full_group {
                    Some(_) => Value::text("full_attention"),
                    None => Nil,
                },
            ),
            ("kv_cache_spec_sliding_window", Nil),
            ("locality", Nil),
            ("ownership", Nil),
        ]
    }

    const fn has_salt_field(&self) -> bool {
        self.habits.maps || self.habits.metadata
    }

    /// What each block has besides tokens; images from the first on that can't be hashed.
    fn extra_keys(&mut self, run: &Run, salt: Option<&str>) -> Value {
        let images = run.plain < run.names.len();
        if !images && salt.is_none() && self.dice.random() {
            return Nil;
        }
        let keys = (0..run.names.len()).map(|at| {
            let mut keys: Vec<Value> = run.lora.map(Value::text).into_iter().collect();
            if at == 0 {
                let tagged = salt.map(|salt| format!("dynamo-cache-salt:{salt}"));
                keys.extend(tagged.map(|text| Value::text(&text)));
            }
            if at >= run.plain {
                keys.push(Value::text("an image"));
            }
            if keys.is_empty() { Nil } else { List(keys) }
        });
        Value::list(keys)
    }

    pub(super) fn medium(&mut self, tier: Tier) -> Value {
        let media: &[Option<&str>] = match tier {
            Tier::Device => &[None, Some("GPU"), Some("device")],
            _ => &[Some("CPU"), Some("CPU_PINNED"), Some("cpu_tier1")],
        };
        Value::maybe(*media.choose(&mut self.dice).unwrap())
    }

    pub(super) fn wires(&self, names: &[Name]) -> Value {
        Value::list(names.iter().map(|name| self.wire(name)))
    }

    pub(super) fn wire(&self, name: &Name) -> Value {
        let number = name.first_chunk().filter(|_| name.len() == 8);
        match (number, self.habits.names) {
            (None, _) => Binary(name.clone()),
            (Some(number), Names::Signed) => {
                let number = i64::from_le_bytes(*number);
                u64::try_from(number).map_or(Int(number), Uint)
            }
            (Some(number), _) => Uint(u64::from_le_bytes(*number)),
        }
    }

    /// An event in the engine's form: an array has the fields in order, without what is nil
    /// at its end.
    pub(super) fn write(&mut self, kind: &str, mut fields: Vec<(&'static str, Value)>) -> Value {
        let kind = Value::text(kind);
        if self.habits.maps {
            let some = fields.into_iter().filter(|(_, value)| *value != Nil);
            return Value::map([("type", kind)].into_iter().chain(some));
        }
        let salt = fields.iter().position(|(name, _)| *name == "cache_salt");
        let salt = salt.map(|at| fields.remove(at).1);
        if let Some(salt) = salt.filter(|_| self.habits.metadata) {
            let lora = fields.iter().find(|(name, _)| *name == "lora_name");
            let lora = lora.map_or(Nil, |(_, value)| value.clone());
            let both = Value::map([("cache_salt", salt), ("lora_name", lora)]);
            set(&mut fields, "lora_name", both);
        }
        let mut values: Vec<Value> = fields.into_iter().map(|(_, value)| value).collect();
        while values.last() == Some(&Nil) {
            values.pop();
        }
        Value::list([kind].into_iter().chain(values))
    }
}

pub(super) fn set(fields: &mut [(&'static str, Value)], name: &str, value: Value) {
    for field in fields {
        if field.0 == name {
            field.1 = value;
            return;
        }
    }
}
