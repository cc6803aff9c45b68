//! A request, as the plan of its model sees it: what many sites share is found once.

use crate::block::ChainHash;
use crate::id::SiteId;
use crate::label::SiteRules;
use crate::time::Instant;
use crate::view::plan::{Plan, Reading, Seat};
use crate::view::{GridView, SiteView};

use super::{Local, RouteRequest};

/// All that a site is weighed by.
pub(super) struct Question<'a> {
    pub(super) view: &'a GridView,
    pub(super) plan: &'a Plan,
    pub(super) request: &'a RouteRequest<'a>,
    pub(super) local: &'a Local<'a>,
    pub(super) now: Instant,
    /// The rules that forbid anything, the policy's first.
    pub(super) rules: Vec<&'a SiteRules>,
    /// The prompt's length by each of the plan's cards, where tokens are known.
    lengths: Vec<Option<u32>>,
    /// The names of its blocks in each of the plan's readings.
    chains: Vec<Option<&'a [ChainHash]>>,
}

impl<'a> Question<'a> {
    /// `None` if no site lists the model.
    pub(super) fn of(
        view: &'a GridView,
        request: &'a RouteRequest<'a>,
        local: &'a Local<'a>,
        now: Instant,
    ) -> Option<Self> {
        let plan = view.plan(request.model.id())?;
        let rules = core::iter::once(&local.policy.rules).chain(request.rules.iter().copied());
        let chains = request.chains;
        let lengths = plan.cards.iter();
        let lengths = lengths.map(|card| chains.prompt_tokens(card.as_ref()));
        let chain = |reading: &Reading| {
            let card = plan.cards[reading.card].as_ref();
            chains.chain(card, reading.kind)
        };
        Some(Self {
            view,
            plan,
            request,
            local,
            now,
            rules: rules.filter(|rules| !rules.allow_all()).collect(),
            lengths: lengths.collect(),
            chains: plan.readings.iter().map(chain).collect(),
        })
    }

    /// The prompt's length by the site's card, where tokens are known.
    pub(super) fn length(&self, seat: &Seat) -> Option<u32> {
        self.lengths[seat.card]
    }

    /// The names of the prompt's blocks in a reading.
    pub(super) fn chain(&self, reading: usize) -> Option<&'a [ChainHash]> {
        self.chains[reading]
    }

    /// Whether the tokens known here are not taken for those that a site sees.
    pub(super) fn is_aside(&self, seat: &Seat) -> bool {
        let aside = self.request.aside;
        !aside.is_empty() && aside.contains(self.name(seat))
    }

    pub(super) fn name(&self, seat: &Seat) -> &'a SiteId {
        self.view.names().site(seat.site)
    }

    /// All that the view has of a site.
    pub(super) fn site(&self, seat: &Seat) -> &'a SiteView {
        &self.view.sites()[seat.site]
    }
}
