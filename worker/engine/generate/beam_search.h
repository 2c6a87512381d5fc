#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sft::engine {

// When a beam search ends (transformers' early_stopping): kNo once the best beam, with its present
// length, is not better than the worst answer found; kYes with as many answers as beams; kNever
// when no beam can become better any more.
enum class BeamStop { kNo, kYes, kNever };

// What a search is asked for.
struct BeamOptions {
  int beams = 1;    // 1: no search
  int answers = 1;  // the best of those found; as many as beams at most
  double length_penalty = 1.0;
  BeamStop stop = BeamStop::kNo;
};

// Throws UserError, which names the option, where one is out of its range.
void CheckBeams(const BeamOptions& options);

// kFailed: no token could be chosen (NextToken).
enum class EndReason { kStopToken, kStopString, kLength, kListener, kFailed };

// Which beginnings of an answer are followed, and which answers have been found: transformers'
// _beam_search, with its fp32 sums and its order of equals (the lower beam, then the lower token).
// Pure. Not thread-safe.
class BeamSearch {
 public:
  // `stop_ids`: how many tokens end an answer; `max_new_tokens`: of an answer.
  BeamSearch(const BeamOptions& options, size_t stop_ids, int64_t max_new_tokens);

  const BeamOptions& options() const { return options_; }
  // Tokens of the beams that are followed: of all the same number.
  const std::vector<std::vector<int32_t>>& beams() const { return beams_; }

  // What comes after a beam: `log_probabilities` of all tokens, after penalties. For the first
  // token beam 0 speaks for all.
  void Offer(size_t beam, std::span<const float> log_probabilities);
  // Every beam was offered what comes after it.
  bool complete() const { return offered_ == beams_.size(); }

  // How an answer ends.
  struct End {
    EndReason reason = EndReason::kStopToken;
    size_t text_bytes = 0;  // with kStopString
  };
  // Whether a beam and a token after it are a whole answer, apart from its length.
  using Ends = std::function<std::optional<End>(std::span<const int32_t> tokens)>;
  // The beams that are followed next, by that which each comes from; empty: the search has ended.
  std::vector<size_t> Advance(const Ends& ends);

  struct Found {
    std::vector<int32_t> tokens;  // with the token that ended it
    End end;
    float score = 0;  // log-probability / tokens^length_penalty
    bool whole = false;
  };
  // The best answers, the best first.
  std::vector<Found> answers() const;

 private:
  struct Candidate {
    float sum = 0;
    size_t beam = 0;
    int32_t token = 0;
  };
  size_t wanted() const;  // candidates that are looked at
  void Follow(const std::vector<Candidate>& candidates, const std::vector<bool>& ended,
              std::vector<size_t>& parents);
  void Keep(const std::vector<Candidate>& candidates, const std::vector<std::optional<End>>& ends);
  bool MayImprove(int64_t length) const;
  bool all_whole() const;

  BeamOptions options_;
  size_t stop_ids_ = 0;
  int64_t max_new_tokens_ = 0;
  std::vector<std::vector<int32_t>> beams_;
  std::vector<float> sums_;
  std::vector<Candidate> offers_;
  size_t offered_ = 0;
  std::vector<Found> found_;  // as many as beams, the best first
  bool improving_ = true;
};

// The pages of keys and values of one search: beams share those of what they have in common, and
// only the last page, which is written to, is copied for each.
class BeamPages {
 public:
  // Pages that a search may hold at once.
  static int64_t Needed(int64_t prompt_tokens, int64_t new_tokens, int64_t beams);

  BeamPages() = default;
  // Takes over the pages, which there must be enough of.
  explicit BeamPages(std::vector<int32_t> pages) : all_(std::move(pages)), spare_(all_) {}

  const std::vector<int32_t>& all() const { return all_; }
  // The table of the first beam: pages for so many tokens.
  std::vector<int32_t> First(int64_t tokens);

  struct Copy {
    int64_t from = 0, to = 0;
  };
  // The tables of the next beams, with room for one token behind `tokens`, made of those of the
  // beams that they come from. `copies`: pages to be copied before anything is written.
  std::vector<std::vector<int32_t>> Fork(const std::vector<std::vector<int32_t>>& tables,
                                         std::span<const size_t> parents, int64_t tokens,
                                         std::vector<Copy>& copies);

 private:
  int32_t Take();

  std::vector<int32_t> all_, spare_;
  std::map<int32_t, int> holders_;
};

}  // namespace sft::engine
