//! The card: from a directory, or from Dynamo's discovery.

use std::num::NonZeroU32;
use std::path::PathBuf;

use kvgrid_core::ModelName;
use kvgrid_prompt::{CardOptions, ChatRules};
use kvgrid_runtime::config::ConfigError;

use super::{SourceSettings, model_name, wrong};
use crate::card::{Overrides, Wanted};
use crate::config::{CardSource, CardTable, StateTable};

/// The card that the relay makes.
#[derive(Clone, Debug)]
pub(crate) enum CardSettings {
    /// Of a model's directory.
    Dir {
        /// The name clients ask for.
        model: ModelName,
        /// The model's directory.
        dir: PathBuf,
        /// What the directory doesn't say.
        options: Box<CardOptions>,
    },
    /// Of what workers say.
    Dynamo {
        /// The place of the source with whose discovery they say it.
        source: usize,
        /// What to look for.
        wanted: Wanted,
    },
}

impl CardSettings {
    /// What a table means.
    pub(super) fn of(
        table: &mut CardTable,
        sources: &[SourceSettings],
        state: &StateTable,
    ) -> Result<Self, ConfigError> {
        let model = model_name("card.model", &table.model)?;
        match table.from {
            CardSource::Dir => Self::of_dir(table, model),
            CardSource::Dynamo => Self::of_discovery(table, model, sources, state),
        }
    }

    /// The name clients ask for.
    pub(crate) const fn model(&self) -> &ModelName {
        match self {
            Self::Dir { model, .. } => model,
            Self::Dynamo { wanted, .. } => &wanted.model,
        }
    }

    fn of_dir(table: &mut CardTable, model: ModelName) -> Result<Self, ConfigError> {
        let missing = |key| wrong(key, "is missing");
        let dir = table.dir.clone().ok_or_else(|| missing("card.dir"))?;
        let block_size: Option<NonZeroU32> = table.block_size;
        let block_size = block_size.ok_or_else(|| missing("card.block_size"))?;
        let mut options = CardOptions::new(model.as_str(), block_size);
        options.eagle = *table.eagle.get_or_insert(false);
        options.capacity_blocks = table.capacity_blocks.unwrap_or(0);
        options.context_length = table.context_length;
        options.lora.clone_from(&table.lora);
        options.tokenizer_backend = *table.tokenizer.get_or_insert_default();
        options.time_zone.clone_from(&table.time_zone);
        options.chat_template.clone_from(&table.chat_template);
        options.chat = ChatRules {
            reasoning_parser: table.reasoning_parser.clone(),
            tool_call_parser: table.tool_call_parser.clone(),
            ..ChatRules::default()
        };
        Ok(Self::Dir {
            model,
            dir,
            options: Box::new(options),
        })
    }

    fn of_discovery(
        table: &CardTable,
        model: ModelName,
        sources: &[SourceSettings],
        state: &StateTable,
    ) -> Result<Self, ConfigError> {
        let told = [
            ("card.dir", table.dir.is_some()),
            ("card.block_size", table.block_size.is_some()),
            ("card.eagle", table.eagle.is_some()),
            ("card.lora", table.lora.is_some()),
            ("card.chat_template", table.chat_template.is_some()),
            ("card.reasoning_parser", table.reasoning_parser.is_some()),
            ("card.tool_call_parser", table.tool_call_parser.is_some()),
        ];
        if let Some((key, _)) = told.into_iter().find(|(_, written)| *written) {
            let reason = "is what the workers say themselves when card.from is \"dynamo\"";
            return Err(wrong(key, reason));
        }
        let source = sources
            .iter()
            .position(|source| source.feeds.discovery().is_some() && source.model == model);
        let reason = "is \"dynamo\", but no source with a discovery is of this model";
        let source = source.ok_or_else(|| wrong("card.from", reason))?;
        let overrides = Overrides {
            tokenizer: table.tokenizer,
            time_zone: table.time_zone.clone(),
            context_length: table.context_length,
        };
        let wanted = Wanted {
            model,
            overrides,
            capacity_blocks: table.capacity_blocks.filter(|blocks| *blocks > 0),
            state: state.dir.clone(),
        };
        Ok(Self::Dynamo { source, wanted })
    }
}
