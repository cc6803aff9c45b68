//! The models that clients can ask for: all that live sites serve, by each of their names once.

use std::collections::BTreeSet;

use kvgrid_core::ModelName;
use kvgrid_core::view::GridView;
use serde::Serialize;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

/// OpenAI's list of models. `created` is what all are said to date from, in Unix seconds.
pub(super) fn page(view: &GridView, created: u64) -> Vec<u8> {
    let served = view
        .sites()
        .iter()
        .filter(|site| site.alive)
        .flat_map(|site| site.models.iter())
        .filter(|model| model.ready)
        .flat_map(|model| std::iter::once(&model.name).chain(&model.aliases))
        .map(ModelName::as_str);
    let names: BTreeSet<&str> = served.collect();
    let model = |id| Model {
        id,
        object: "model",
        created,
        owned_by: "kvgrid",
    };
    let list = List {
        object: "list",
        data: names.into_iter().map(model).collect(),
    };
    serde_json::to_vec(&list).expect("names and numbers serialise")
}
