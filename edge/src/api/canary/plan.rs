//! Which canary is next, and what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kvgrid_core::Instant;
use kvgrid_core::id::{ModelId, ModelName, SiteId};
use kvgrid_core::parity::{Kind, Parity, Trait};
use kvgrid_core::view::{GridView, ModelView};
use serde_json::{Value, json};

/// The kinds that canaries are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    Plain,
    Tools,
    Arrays,
    Reasoning,
}

impl Shape {
    const ALL: [Self; 4] = [Self::Plain, Self::Tools, Self::Arrays, Self::Reasoning];

    const fn kind(self) -> Kind {
        match self {
            Self::Plain => Kind::PLAIN,
            Self::Tools => Kind::PLAIN.with(Trait::Tools),
            Self::Arrays => Kind::PLAIN.with(Trait::Arrays),
            Self::Reasoning => Kind::PLAIN.with(Trait::Reasoning),
        }
    }
}

/// Whether the site is to give the prompt's token ids, which Dynamo does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    Wanted,
    Unwanted,
}

/// What is to be sent where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Canary {
    pub(super) site: SiteId,
    pub(super) model: ModelName,
    pub(super) shape: Shape,
    /// So many words fill some blocks.
    pub(super) words: usize,
}

/// Remembers what was sent when, as long as the site serves the model.
#[derive(Debug)]
pub(super) struct Plan {
    renew_after: Duration,
    sent: BTreeMap<(SiteId, ModelId, Shape), Instant>,
}

impl Plan {
    pub(super) const fn new(renew_after: Duration) -> Self {
        Self {
            renew_after,
            sent: BTreeMap::new(),
        }
    }

    /// The canary whose kind was told of the longest ago, by clients' answers or a canary's; it
    /// counts as sent from now on. `None` if all that can be known is known. Of a kind whose ids
    /// differed clients' answers can't tell that they agree again.
    pub(super) fn next(
        &mut self,
        view: &GridView,
        parity: &Parity,
        now: Instant,
    ) -> Option<Canary> {
        let mut all = BTreeMap::new();
        for site in view.sites().iter().filter(|site| site.alive) {
            let usable = |model: &&ModelView| {
                model.ready && model.card.as_ref().is_some_and(|card| card.usable)
            };
            for model in site.models.iter().filter(usable) {
                for shape in Shape::ALL {
                    all.insert((site.site.clone(), model.id, shape), model);
                }
            }
        }
        self.sent.retain(|key, _| all.contains_key(key));
        let told = |(site, model, shape): &(SiteId, ModelId, Shape)| {
            let mut kinds = parity.kinds(site, *model);
            let known = kinds.find(|(kind, _)| *kind == shape.kind());
            let known = known.filter(|(_, entry)| entry.same_ids != Some(false));
            known.map(|(_, entry)| entry.at)
        };
        let known = |key: &(SiteId, ModelId, Shape)| told(key).max(self.sent.get(key).copied());
        let is_due =
            |at: Option<Instant>| at.is_none_or(|at| now.saturating_since(at) >= self.renew_after);
        let due = all.iter().map(|(key, model)| (known(key), key, *model));
        let due = due.filter(|(at, ..)| is_due(*at));
        let (_, key, model) = due.min_by_key(|(at, ..)| *at)?;
        self.sent.insert(key.clone(), now);
        let block_size = model.card.as_ref().map_or(0, |card| card.block_size.get());
        Some(Canary {
            site: key.0.clone(),
            model: model.name.clone(),
            shape: key.2,
            words: block_size as usize * 3 + 16,
        })
    }
}

/// A text of so many words that begins like no other.
pub(super) fn text(words: usize, nonce: u64) -> String {
    let mut text = format!("{nonce:016x}");
    for word in ["to", "know", "what", "is", "cached"]
        .into_iter()
        .cycle()
        .take(words)
    {
        text.push(' ');
        text.push_str(word);
    }
    text
}

impl Canary {
    /// The request's body.
    pub(super) fn body(&self, text: &str, ids: Ids) -> Bytes {
        let content = match self.shape {
            Shape::Arrays => json!([{"type": "text", "text": text}]),
            Shape::Plain | Shape::Tools | Shape::Reasoning => text.into(),
        };
        let mut body = json!({
            "model": self.model.as_str(),
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "stream": false,
        });
        if ids == Ids::Wanted {
            body["nvext"] = json!({"extra_fields": ["prompt_token_ids"]});
        }
        match self.shape {
            Shape::Tools => body["tools"] = tools(),
            Shape::Reasoning => {
                body["chat_template_kwargs"] = json!({"enable_thinking": false});
            }
            Shape::Plain | Shape::Arrays => {}
        }
        Bytes::from(body.to_string())
    }
}

fn tools() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    }])
}

#[cfg(test)]
mod tests {
    use kvgrid_core::block::HashFormat;
    use kvgrid_core::label::Labels;
    use kvgrid_core::load::SiteLoad;
    use kvgrid_core::parity::{Forecast, ParityConfig, Usage};
    use kvgrid_core::view::{CardDigest, CardInfo, SiteView};

    use super::*;

    const RENEW: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn site(name: &str, usable: bool) -> SiteView {
        let model = ModelName::new("m").unwrap();
        let card = CardInfo {
            digest: CardDigest([1; 32]),
            block_size: 16.try_into().unwrap(),
            format: HashFormat::Standard,
            capacity_blocks: None,
            context_length: None,
            usable,
        };
        SiteView {
            site: SiteId::new(name).unwrap(),
            region: None,
            labels: Labels::new(),
            alive: true,
            relays: Vec::new(),
            models: vec![ModelView {
                aliases: Vec::new(),
                apart: Vec::new(),
                id: model.id(),
                name: model,
                ready: true,
                card: Some(card),
            }],
            known_by: None,
            pools: Vec::new(),
            load: SiteLoad::default(),
        }
    }

    fn drain(
        plan: &mut Plan,
        view: &GridView,
        parity: &Parity,
        now: Instant,
    ) -> Vec<(String, Shape)> {
        let mut next = || plan.next(view, parity, now);
        let canaries = std::iter::from_fn(&mut next);
        canaries
            .map(|canary| (canary.site.to_string(), canary.shape))
            .collect()
    }

    fn with_tools() -> Forecast {
        Forecast {
            site: SiteId::new("a").unwrap(),
            model: ModelName::new("m").unwrap().id(),
            kind: Shape::Tools.kind(),
            card: CardDigest([1; 32]),
            prompt_tokens: 10,
            complete: true,
            source: None,
            overlap_tokens: 0,
            block_size: 16,
            beginning: None,
            pools: Vec::new(),
        }
    }

    /// What is said of a prompt that is as long as expected.
    fn as_long() -> Usage {
        Usage {
            prompt_tokens: Some(10),
            ..Usage::default()
        }
    }

    #[test]
    fn each_kind_at_each_site_is_sent_once_in_a_while() {
        let view = GridView::new(vec![site("a", true), site("b", true), site("blind", false)]);
        let parity = Parity::new(ParityConfig::default());
        let mut plan = Plan::new(RENEW);

        let sent = drain(&mut plan, &view, &parity, at(0));

        assert_eq!(sent.len(), 8, "{sent:?}");
        assert!(sent.iter().all(|(site, _)| site != "blind"));
        assert_eq!(drain(&mut plan, &view, &parity, at(599)), []);
        assert_eq!(drain(&mut plan, &view, &parity, at(600)).len(), 8);
    }

    #[test]
    fn what_clients_answers_tell_is_not_asked_again() {
        let view = GridView::new(vec![site("a", true)]);
        let mut parity = Parity::new(ParityConfig::default());
        parity.note(&with_tools(), as_long(), &view, at(1));

        let sent = drain(&mut Plan::new(RENEW), &view, &parity, at(2));

        let shapes: Vec<Shape> = sent.into_iter().map(|(_, shape)| shape).collect();
        assert_eq!(shapes, [Shape::Plain, Shape::Arrays, Shape::Reasoning]);
    }

    #[test]
    fn of_a_kind_whose_ids_differed_clients_answers_are_not_enough() {
        let view = GridView::new(vec![site("a", true)]);
        let mut parity = Parity::new(ParityConfig::default());
        let mut plan = Plan::new(RENEW);
        assert_eq!(drain(&mut plan, &view, &parity, at(0)).len(), 4);
        let other_ids = Usage {
            same_ids: Some(false),
            ..as_long()
        };
        parity.note(&with_tools(), other_ids, &view, at(1));
        parity.note(&with_tools(), as_long(), &view, at(599));

        let sent = drain(&mut plan, &view, &parity, at(600));

        assert!(sent.contains(&("a".to_owned(), Shape::Tools)), "{sent:?}");
    }

    #[test]
    fn no_two_texts_begin_alike() {
        assert_ne!(text(8, 1)[..16], text(8, 2)[..16]);
        assert_eq!(text(8, 1).split(' ').count(), 9);
    }
}
