#include "worker/engine/generate/beam_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "worker/engine/base/error.h"
#include "worker/engine/generate/pages.h"

namespace sft::engine {

namespace {

// What transformers adds to sums of what may not be chosen.
constexpr float kOut = -1.0e9f;

float Penalised(float sum, int64_t length, double penalty) {
  return sum / static_cast<float>(std::pow(static_cast<double>(length), penalty));
}

// The places of the largest values, of equals the first, from the largest on.
std::vector<size_t> Largest(std::span<const float> values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(std::min(count, order.size()));
  return order;
}

}  // namespace

void CheckBeams(const BeamOptions& options) {
  constexpr int kMost = 64;
  if (options.beams < 1 || options.beams > kMost) {
    throw UserError(fmt::format("num_beams is {}, must be from 1 to {}", options.beams, kMost),
                    "bad_sampling", "give a num_beams in that range");
  }
  if (options.beams > 1 && (options.answers < 1 || options.answers > options.beams)) {
    throw UserError(
        fmt::format("{} answers of a search with {} beams", options.answers, options.beams),
        "bad_sampling", "ask for as many answers as beams at most");
  }
  if (!std::isfinite(options.length_penalty)) {
    throw UserError("length_penalty is no number", "bad_sampling", "give a number");
  }
}

BeamSearch::BeamSearch(const BeamOptions& options, size_t stop_ids, int64_t max_new_tokens)
    : options_(options),
      stop_ids_(stop_ids),
      max_new_tokens_(max_new_tokens),
      beams_(static_cast<size_t>(options.beams)),
      sums_(beams_.size(), kOut),
      found_(beams_.size()) {
  sums_[0] = 0.0f;
  for (Found& found : found_) {
    found.score = kOut;
    found.end.reason = EndReason::kLength;
  }
}

// Enough that as many as beams go on when every token that ends an answer is among them.
size_t BeamSearch::wanted() const { return std::max<size_t>(2, 1 + stop_ids_) * beams_.size(); }

void BeamSearch::Offer(size_t beam, std::span<const float> log_probabilities) {
  const size_t count = std::min(wanted(), log_probabilities.size());
  std::vector<int32_t> order(log_probabilities.size());
  std::iota(order.begin(), order.end(), 0);
  const auto first = [&](int32_t a, int32_t b) {
    const float x = log_probabilities[static_cast<size_t>(a)];
    const float y = log_probabilities[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    first);
  order.resize(count);
  const bool begins = beams_[beam].empty();
  const size_t last = begins ? beams_.size() : beam + 1;
  for (size_t i = beam; i < last; ++i) {
    for (const int32_t token : order) {
      offers_.push_back({log_probabilities[static_cast<size_t>(token)] + sums_[i], i, token});
    }
    ++offered_;
  }
}

std::vector<size_t> BeamSearch::Advance(const Ends& ends) {
  std::stable_sort(offers_.begin(), offers_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  offers_.resize(std::min(offers_.size(), wanted()));
  const auto length = static_cast<int64_t>(beams_[0].size()) + 1;
  std::vector<std::optional<End>> ended;
  std::vector<bool> has_ended;
  for (const Candidate& candidate : offers_) {
    std::vector<int32_t> tokens = beams_[candidate.beam];
    tokens.push_back(candidate.token);
    std::optional<End> end = ends(tokens);
    if (!end && length >= max_new_tokens_) end = End{EndReason::kLength, 0};
    ended.push_back(end);
    has_ended.push_back(end.has_value());
  }
  Keep(offers_, ended);
  std::vector<size_t> parents;
  Follow(offers_, has_ended, parents);
  improving_ = improving_ && MayImprove(length);
  const bool all_ended = std::all_of(has_ended.begin(), has_ended.end(), [](bool e) { return e; });
  const bool enough = options_.stop == BeamStop::kYes && all_whole();
  offers_.clear();
  offered_ = 0;
  if (!improving_ || enough || all_ended) parents.clear();
  return parents;
}

void BeamSearch::Follow(const std::vector<Candidate>& candidates, const std::vector<bool>& ended,
                        std::vector<size_t>& parents) {
  std::vector<float> sums;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sums.push_back(ended[i] ? candidates[i].sum + kOut : candidates[i].sum);
  }
  std::vector<std::vector<int32_t>> next;
  std::vector<float> next_sums;
  for (const size_t i : Largest(sums, beams_.size())) {
    std::vector<int32_t> tokens = beams_[candidates[i].beam];
    tokens.push_back(candidates[i].token);
    next.push_back(std::move(tokens));
    next_sums.push_back(sums[i]);
    parents.push_back(candidates[i].beam);
  }
  beams_ = std::move(next);
  sums_ = std::move(next_sums);
}

// Only the first candidates, as many as beams, can become answers: the others are there so that
// enough go on.
void BeamSearch::Keep(const std::vector<Candidate>& candidates,
                      const std::vector<std::optional<End>>& ends) {
  const auto length = static_cast<int64_t>(beams_[0].size()) + 1;
  const bool closed = (options_.stop == BeamStop::kYes && all_whole()) || !improving_;
  std::vector<Found> all = found_;
  std::vector<float> scores;
  for (const Found& found : all) scores.push_back(found.score);
  for (size_t i = 0; i < candidates.size(); ++i) {
    Found found;
    found.whole = ends[i].has_value() && i < found_.size();
    found.tokens = beams_[candidates[i].beam];
    found.tokens.push_back(candidates[i].token);
    found.end = ends[i].value_or(End{EndReason::kLength, 0});
    found.score = Penalised(candidates[i].sum, length, options_.length_penalty);
    if (closed) found.score += kOut;
    if (!found.whole) found.score += kOut;
    scores.push_back(found.score);
    all.push_back(std::move(found));
  }
  std::vector<Found> kept;
  for (const size_t i : Largest(scores, found_.size())) kept.push_back(std::move(all[i]));
  found_ = std::move(kept);
}

bool BeamSearch::MayImprove(int64_t length) const {
  const bool whole_length = options_.stop == BeamStop::kNever && options_.length_penalty > 0.0;
  const float best =
      Penalised(sums_[0], whole_length ? max_new_tokens_ : length, options_.length_penalty);
  const float worst = found_.back().score;
  return std::any_of(found_.begin(), found_.end(),
                     [&](const Found& found) { return best > (found.whole ? worst : kOut); });
}

bool BeamSearch::all_whole() const {
  return std::all_of(found_.begin(), found_.end(), [](const Found& found) { return found.whole; });
}

std::vector<BeamSearch::Found> BeamSearch::answers() const {
  return {found_.begin(), found_.begin() + options_.answers};
}

int64_t BeamPages::Needed(int64_t prompt_tokens, int64_t new_tokens, int64_t beams) {
  const int64_t shared = prompt_tokens / PageTable::kPageTokens;
  return shared + beams * (PageTable::PagesFor(prompt_tokens + new_tokens) - shared);
}

int32_t BeamPages::Take() {
  if (spare_.empty()) throw InternalError("a search needs more pages than it was given");
  const int32_t page = spare_.back();
  spare_.pop_back();
  holders_[page] = 1;
  return page;
}

std::vector<int32_t> BeamPages::First(int64_t tokens) {
  std::vector<int32_t> table;
  while (static_cast<int64_t>(table.size()) < PageTable::PagesFor(tokens)) table.push_back(Take());
  return table;
}

std::vector<std::vector<int32_t>> BeamPages::Fork(const std::vector<std::vector<int32_t>>& tables,
                                                  std::span<const size_t> parents, int64_t tokens,
                                                  std::vector<Copy>& copies) {
  std::vector<std::vector<int32_t>> next;
  for (const size_t parent : parents) {
    next.push_back(tables[parent]);
    for (const int32_t page : tables[parent]) ++holders_[page];
  }
  for (const auto& table : tables) {
    for (const int32_t page : table) {
      if (--holders_[page] > 0) continue;
      holders_.erase(page);
      spare_.push_back(page);
    }
  }
  for (auto& table : next) {
    if (tokens % PageTable::kPageTokens == 0) {
      table.push_back(Take());
      continue;
    }
    int32_t& last = table.back();
    if (holders_[last] == 1) continue;
    --holders_[last];
    const int32_t own = Take();
    copies.push_back({last, own});
    last = own;
  }
  return next;
}

}  // namespace sft::engine
