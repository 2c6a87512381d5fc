#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/generate/beam_search.h"
#include "worker/engine/generate/paged_decoder.h"
#include "worker/engine/generate/pages.h"
#include "worker/engine/generate/sampling.h"
#include "worker/engine/model/decoder.h"

namespace sft::engine {

// A token of an answer and the likeliest at its place, before penalties and temperature.
struct ChosenToken {
  TokenLikelihood token;
  std::vector<TokenLikelihood> likeliest;  // the likeliest first
};

// A prompt, and how it is to be answered.
struct GenerationRequest {
  std::vector<int32_t> prompt;   // not empty
  int64_t max_new_tokens = 256;  // 0, with `prompt_scores`: nothing is answered
  SamplingOptions sampling;
  // More than one beam: the answers that a search finds, which draws nothing (temperature 0).
  BeamOptions beams;
  std::vector<int32_t> stop_ids;  // any of them ends the answer and is not part of it
  // Any of them in the answer's text ends it; `decode` makes the text of tokens.
  std::vector<std::string> stop_strings;
  std::function<std::string(std::span<const int32_t>)> decode;
  bool adapter = true;             // false: the base model answers
  bool log_probabilities = false;  // of the answer's tokens, before penalties and temperature
  bool prompt_scores = false;      // how likely the prompt's own tokens were
  // Optional; sees each token as it is made, and ends the answer by returning false.
  std::function<bool(int32_t)> on_token;
  // Optional; sees how likely each token was before on_token sees it, one that ends the answer
  // included, with the `alternatives` likeliest at its place.
  std::function<void(const ChosenToken&)> on_choice;
  int64_t alternatives = 0;
};

// What a request got.
struct GenerationAnswer {
  int64_t request = 0;  // what Add returned
  int sample = 0;       // of the answers of a search: 0 is the best
  std::vector<int32_t> tokens;
  EndReason reason = EndReason::kLength;
  std::string problem;    // with kFailed
  size_t text_bytes = 0;  // with kStopString: of the answer's text, up to the stop string
  double score = 0;       // of a search: log-probability / tokens^length_penalty
  std::vector<double> log_probabilities;
  // With prompt_scores: of every token of the prompt but the first, after those before it.
  std::vector<TokenScore> prompt_scores;
};

// Limits of a BatchGenerator.
struct BatchOptions {
  int64_t cache_tokens = 32768;  // whose keys and values are kept at once, of all requests
  int64_t most_requests = 64;    // that are answered at once; each beam of a search counts
  int64_t step_tokens = 512;  // of a forward: a longer prompt takes several, shorter ones between
};

// Answers many requests at once with the weights of a decoder. Each Step is one forward over the
// next token of every answer under way, or over pieces of the prompts that came last, or, on a CPU,
// over both; requests join when there is room and leave when they are done. Keys and values lie in
// pages.
//
// The bits of an answer depend on its request alone, not on what is answered beside it, on the
// size of steps and pages, or on the number of threads: every operation treats a token by itself
// (Pass::tile, ops::PagedAttention), and each request draws from its own numbers (UniformOf).
//
// A request keeps room for its longest answer from the start, so none is ever put back. Of a search
// that is the prompt once, and the longest answer for each beam.
// Thread-compatible; not while the decoder does something else.
class BatchGenerator {
 public:
  // Borrows `decoder`. `optional_adapters`: the base's own weights are all there, so that requests
  // may do without the adapters.
  BatchGenerator(const ModelConfig& config, Decoder& decoder, at::Device device,
                 at::ScalarType compute, bool optional_adapters, const BatchOptions& options);

  // Throws UserError where a request can never be answered.
  void Check(const GenerationRequest& request) const;
  // Checks a request, puts it behind those that wait, and returns its number, from 0.
  int64_t Add(GenerationRequest request);

  // Takes back a request that waits or is being answered: Step says no more of it. False: there is
  // none of this number any more.
  bool Withdraw(int64_t number);

  // Tokens of the longest answer that a prompt of so many tokens can get; below 1: it gets none.
  int64_t MostNewTokens(int64_t prompt_tokens) const;

  // Tokens of keys and values that a request keeps room for.
  static int64_t TokensOf(int64_t prompt_tokens, int64_t new_tokens, int64_t beams);

  // One forward. Returns the answers that were finished in it.
  std::vector<GenerationAnswer> Step();

  // True when all requests were answered.
  bool idle() const { return waiting_.empty() && running_.empty(); }

 private:
  // A search, and its pages: what its beams have in common.
  struct Search {
    BeamSearch beams;
    BeamPages pages;
    size_t running = 1;   // beams that run: behind each other
    std::string problem;  // why it cannot go on
  };
  struct Running {
    int64_t number = 0;
    GenerationRequest request;
    std::vector<int32_t> tokens;  // prompt and answer
    std::vector<int32_t> pages;
    std::vector<int32_t> states;  // of its own; of a search one for each beam
    int64_t cached = 0;           // tokens whose keys and values are kept
    int64_t prompted =
        0;  // tokens that are run as those of prompts: all that were there at the start
    bool is_long = false;
    std::shared_ptr<Search> search;  // none: this is the only answer
    size_t beam = 0;
    GenerationAnswer answer;

    bool answers() const { return cached >= prompted; }
    int64_t missing() const { return static_cast<int64_t>(tokens.size()) - cached; }
  };
  // Tokens of one request in a forward.
  struct Piece {
    size_t running = 0;
    int64_t count = 0;
  };

  void Admit();
  std::vector<Piece> Answers() const;
  // Half of the room goes on with the oldest prompt, so that none waits for ever; the rest is for
  // those of which the least is left, so that a short one does not wait for long ones before it.
  std::vector<Piece> Prompts(int64_t room) const;
  // Appends the rows of a piece.
  void AddRows(const Piece& piece, std::vector<PagedRow>& rows) const;
  // Tokens of prompts among a forward's rows whose scores are wanted and not there yet.
  struct Scored {
    std::vector<PagedDecoder::Target> targets;
    std::vector<size_t> running;  // whose each of them is
  };
  void AddTargets(const Piece& piece, int64_t first_row, Scored& scored) const;
  // One forward; the pieces that reach their request's last token take what comes next. Marks those
  // requests that it ends.
  void Run(const std::vector<Piece>& pieces, bool of_prompts, std::vector<bool>& done);
  // Gives `pieces` the tokens that their rows of `scores` make likely.
  void TakeTokens(const std::vector<Piece>& pieces, const PagedDecoder::Scores& scores,
                  std::vector<bool>& done);
  // The next token by all of the request's options; `logits` fp32 on the CPU, overwritten.
  static int32_t Choose(Running& running, const at::Tensor& logits);
  // Tells a search what comes after one of its beams.
  static void Offer(Running& running, const at::Tensor& logits);
  // Adds the next token to a request; true if that ended its answer.
  bool Accept(Running& running, int32_t token);
  // What changes with the length of a request.
  void Lengthen(Running& running);
  // Where one of the request's stop strings begins in the text of these tokens; npos: none is
  // there.
  static size_t FindStopString(const GenerationRequest& request, std::span<const int32_t> tokens);
  // Rows that answers take of a forward's.
  int64_t Shared(const std::vector<Piece>& answers) const;
  int64_t RowsInUse() const;
  // The beams of a search that come next, into `left`, or its answers.
  void MoveOn(std::span<Running> beams, std::vector<Running>& left,
              std::vector<GenerationAnswer>& answers);
  void Finish(Running& beam, std::vector<GenerationAnswer>& answers);
  // Lets those that are done go, and returns what they got.
  std::vector<GenerationAnswer> Leave(const std::vector<bool>& done);
  bool EndsWithString(Running& running) const;

  ModelConfig config_;
  at::Device device_;
  bool optional_adapters_ = true;
  BatchOptions limits_;
  PageTable pages_, states_;
  PagedDecoder decoder_;
  std::deque<Running> waiting_;
  std::vector<Running> running_;
  int64_t added_ = 0;
  int64_t prompts_in_a_row_ = 0;  // steps
  bool moved_ = false;            // requests came or went since the page tables were set
};

}  // namespace sft::engine
