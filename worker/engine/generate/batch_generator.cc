#include "worker/engine/generate/batch_generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Steps of prompts in a row, on a GPU, before answers under way get their next token.
constexpr int64_t kPromptSteps = 4;

bool Contains(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

void CheckRequest(const GenerationRequest& request, int64_t vocabulary) {
  if (request.prompt.empty())
    throw UserError("the prompt is empty", "bad_prompt", "give some text");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocabulary) {
      throw UserError(
          fmt::format("the prompt holds token {}, but the model has {} tokens", token, vocabulary),
          "bad_prompt", "give the tokenizer that belongs to the model");
    }
  }
  const bool only_scored = request.prompt_scores && request.max_new_tokens == 0;
  if (request.max_new_tokens < 1 && !only_scored) {
    throw UserError(fmt::format("max_new_tokens is {}", request.max_new_tokens), "bad_prompt",
                    "ask for at least one token");
  }
  for (const std::string& text : request.stop_strings) {
    if (text.empty()) throw UserError("a stop string is empty", "bad_prompt", "leave it out");
  }
  if (!request.stop_strings.empty() && !request.decode) {
    throw InternalError("stop strings need a function that decodes tokens");
  }
  CheckSampling(request.sampling);
  CheckBeams(request.beams);
  if (request.beams.beams > 1 && request.sampling.temperature > 0.0) {
    throw UserError("a search with beams draws no tokens: the temperature must be 0",
                    "bad_sampling", "leave the temperature out, or the beams");
  }
  if (request.beams.beams > 1 && (request.on_token || request.log_probabilities || only_scored)) {
    throw InternalError("the tokens of a search are known at its end only");
  }
}

// The next token is the likeliest, whatever stands before it.
bool IsGreedy(const GenerationRequest& request, int64_t answered) {
  const SamplingOptions& o = request.sampling;
  return o.temperature == 0.0 && o.repetition_penalty == 1.0 && o.frequency_penalty == 0.0 &&
         o.presence_penalty == 0.0 && o.no_repeat_ngram == 0 && answered >= o.min_new_tokens &&
         !request.log_probabilities && !request.on_choice;
}

}  // namespace

BatchGenerator::BatchGenerator(const ModelConfig& config, Decoder& decoder, at::Device device,
                               at::ScalarType compute, bool optional_adapters,
                               const BatchOptions& options)
    : config_(config),
      device_(device),
      optional_adapters_(optional_adapters),
      limits_(options),
      pages_(PageTable::PagesFor(options.cache_tokens)),
      states_(options.most_requests),
      decoder_(config, decoder, at::TensorOptions(device).dtype(compute), pages_.most(),
               options.most_requests) {}

void BatchGenerator::Check(const GenerationRequest& request) const {
  CheckRequest(request, config_.vocab);
  const int64_t most = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (config_.learned_positions > 0 && most > config_.learned_positions) {
    throw UserError(
        fmt::format("the model has a table of {} positions: a prompt of {} tokens and "
                    "{} new ones do not fit",
                    config_.learned_positions, request.prompt.size(), request.max_new_tokens),
        "bad_prompt", "give a shorter prompt, or ask for fewer tokens");
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int beams = request.beams.beams;
  if (PageTable::PagesFor(TokensOf(prompt, request.max_new_tokens, beams)) > pages_.most()) {
    throw UserError(
        fmt::format("a prompt of {} tokens and {} new ones{} do not fit into keys and values of "
                    "{} tokens",
                    prompt, request.max_new_tokens,
                    beams > 1 ? fmt::format(" of each of {} beams", beams) : "",
                    limits_.cache_tokens),
        "bad_prompt", "give a shorter prompt, or ask for fewer tokens or beams");
  }
  if (beams > limits_.most_requests) {
    throw UserError(fmt::format("{} beams are more than the {} answers that are worked on at once",
                                beams, limits_.most_requests),
                    "bad_prompt", "ask for fewer beams");
  }
  if (!request.adapter && !optional_adapters_) {
    throw UserError(
        "the adapter takes the place of whole tensors of its base, so the base alone "
        "cannot answer beside it",
        "bad_prompt", "ask the base without the adapter");
  }
}

int64_t BatchGenerator::Add(GenerationRequest request) {
  Check(request);
  Running made;
  made.number = made.answer.request = added_++;
  made.tokens = request.prompt;
  made.prompted = static_cast<int64_t>(made.tokens.size());
  made.is_long = decoder_.IsLong(made.prompted);
  if (request.beams.beams > 1) {
    made.search = std::make_shared<Search>(
        Search{BeamSearch(request.beams, request.stop_ids.size(), request.max_new_tokens), {}});
  }
  made.request = std::move(request);
  waiting_.push_back(std::move(made));
  return waiting_.back().number;
}

bool BatchGenerator::Withdraw(int64_t number) {
  const auto is_it = [&](const Running& each) { return each.number == number; };
  if (std::erase_if(waiting_, is_it) > 0) return true;
  const auto found = std::ranges::find_if(running_, is_it);
  if (found == running_.end()) return false;
  // All beams of a search go, and the pages of all of them are its own.
  pages_.GiveBack(found->search ? found->search->pages.all() : found->pages);
  states_.GiveBack(found->states);
  std::erase_if(running_, is_it);
  moved_ = true;
  return true;
}

int64_t BatchGenerator::MostNewTokens(int64_t prompt_tokens) const {
  int64_t most = pages_.most() * PageTable::kPageTokens;
  if (config_.learned_positions > 0) most = std::min(most, config_.learned_positions);
  return most - prompt_tokens;
}

int64_t BatchGenerator::TokensOf(int64_t prompt_tokens, int64_t new_tokens, int64_t beams) {
  if (beams <= 1) return prompt_tokens + new_tokens;
  return BeamPages::Needed(prompt_tokens, new_tokens, beams) * PageTable::kPageTokens;
}

int64_t BatchGenerator::RowsInUse() const {
  int64_t rows = 0;
  for (const Running& running : running_) {
    if (running.beam == 0) rows += running.request.beams.beams;
  }
  return rows;
}

void BatchGenerator::Admit() {
  int64_t longest = 0;
  while (!waiting_.empty()) {
    Running& next = waiting_.front();
    const auto prompt = static_cast<int64_t>(next.request.prompt.size());
    const int64_t tokens = prompt + next.request.max_new_tokens;
    const int beams = next.request.beams.beams;
    const int64_t pages = PageTable::PagesFor(TokensOf(prompt, next.request.max_new_tokens, beams));
    if (RowsInUse() + beams > limits_.most_requests || !pages_.HasRoom(pages)) break;
    next.pages = pages_.Take(pages);
    next.states = states_.Take(beams);
    if (next.search) {
      next.search->pages = BeamPages(std::move(next.pages));
      next.pages = next.search->pages.First(prompt);
    }
    longest = std::max(longest, tokens);
    running_.push_back(std::move(next));
    waiting_.pop_front();
    moved_ = true;
  }
  if (longest > 0) decoder_.Reserve(longest, pages_.touched(), states_.touched());
  if (!std::exchange(moved_, false)) return;
  std::vector<std::span<const int32_t>> tables;
  for (const Running& running : running_) tables.emplace_back(running.pages);
  decoder_.SetTables(tables);
}

std::vector<BatchGenerator::Piece> BatchGenerator::Answers() const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < running_.size(); ++i) {
    // A beam that has been run waits for the others of its search.
    if (running_[i].answers() && running_[i].missing() > 0) pieces.push_back({i, 1});
  }
  return pieces;
}

std::vector<BatchGenerator::Piece> BatchGenerator::Prompts(int64_t room) const {
  std::vector<size_t> reading;  // the oldest first
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].answers()) reading.push_back(i);
  }
  std::vector<Piece> pieces;
  if (reading.empty() || room <= 0) return pieces;
  std::vector<int64_t> counts(running_.size());
  const auto give = [&](size_t running, int64_t most) {
    const int64_t count = std::min({most, room, running_[running].missing() - counts[running]});
    counts[running] += count;
    room -= count;
  };
  give(reading[0], (room + 1) / 2);
  std::ranges::stable_sort(reading, {}, [&](size_t i) { return running_[i].missing(); });
  for (const size_t running : reading) give(running, room);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) pieces.push_back({i, counts[i]});
  }
  return pieces;
}

void BatchGenerator::AddRows(const Piece& piece, std::vector<PagedRow>& rows) const {
  const Running& running = running_[piece.running];
  for (int64_t position = running.cached; position < running.cached + piece.count; ++position) {
    const int64_t page = running.pages[static_cast<size_t>(position / PageTable::kPageTokens)];
    rows.push_back({.token = running.tokens[static_cast<size_t>(position)],
                    .position = position,
                    .request = static_cast<int64_t>(piece.running),
                    .slot = page * PageTable::kPageTokens + position % PageTable::kPageTokens,
                    .is_long = running.is_long,
                    .adapted = running.request.adapter,
                    .state = running.states[running.beam]});
  }
}

void BatchGenerator::AddTargets(const Piece& piece, int64_t first_row, Scored& scored) const {
  const Running& running = running_[piece.running];
  if (!running.request.prompt_scores) return;
  const auto known = static_cast<int64_t>(running.answer.prompt_scores.size());
  const auto end = std::min<int64_t>(running.cached + piece.count,
                                     static_cast<int64_t>(running.request.prompt.size()) - 1);
  // What is read anew for longer frequencies keeps the scores that it had.
  for (int64_t position = std::max(running.cached, known); position < end; ++position) {
    scored.targets.push_back(
        {first_row + position - running.cached, running.tokens[static_cast<size_t>(position) + 1]});
    scored.running.push_back(piece.running);
  }
}

void BatchGenerator::Run(const std::vector<Piece>& pieces, bool of_prompts,
                         std::vector<bool>& done) {
  std::vector<PagedRow> rows;
  std::vector<int64_t> last;
  std::vector<Piece> ends;  // that reach their request's last token
  Scored scored;
  for (const Piece& piece : pieces) {
    if (of_prompts) AddTargets(piece, static_cast<int64_t>(rows.size()), scored);
    AddRows(piece, rows);
    Running& running = running_[piece.running];
    running.cached += piece.count;
    if (running.missing() > 0) continue;
    if (running.request.max_new_tokens == 0) {
      done[piece.running] = true;
      continue;
    }
    last.push_back(static_cast<int64_t>(rows.size()) - 1);
    ends.push_back(piece);
  }
  const PagedDecoder::Scores scores =
      of_prompts ? decoder_.Prompts(rows, last, scored.targets) : decoder_.Tokens(rows);
  for (size_t i = 0; i < scored.running.size(); ++i) {
    running_[scored.running[i]].answer.prompt_scores.push_back(scores.targets[i]);
  }
  if (!ends.empty()) TakeTokens(ends, scores, done);
}

void BatchGenerator::TakeTokens(const std::vector<Piece>& pieces,
                                const PagedDecoder::Scores& scores, std::vector<bool>& done) {
  const Tensor likeliest = scores.likeliest.cpu();
  const auto* best = likeliest.const_data_ptr<double>();
  for (size_t row = 0; row < pieces.size(); ++row) {
    Running& running = running_[pieces[row].running];
    if (running.search) {
      Offer(running, scores.logits[static_cast<int64_t>(row)].to(at::kCPU, at::kFloat));
      continue;
    }
    const auto answered = static_cast<int64_t>(running.answer.tokens.size());
    const double logit = best[pieces.size() + row];
    auto token = static_cast<int32_t>(best[row]);
    if (!std::isfinite(logit) || !IsGreedy(running.request, answered)) {
      const Tensor logits = scores.logits[static_cast<int64_t>(row)].to(at::kCPU, at::kFloat);
      try {
        token = Choose(running, logits);
      } catch (const UserError& error) {
        running.answer.reason = EndReason::kFailed;
        running.answer.problem = error.what();
        done[pieces[row].running] = true;
        continue;
      }
    }
    done[pieces[row].running] = Accept(running, token);
  }
}

int32_t BatchGenerator::Choose(Running& running, const Tensor& logits) {
  const GenerationRequest& request = running.request;
  const bool told = request.log_probabilities || request.on_choice;
  Tensor changed = told ? logits.clone() : logits;
  const int32_t token =
      NextToken({changed.mutable_data_ptr<float>(), static_cast<size_t>(changed.numel())},
                request.sampling, {request.prompt, running.answer.tokens}, request.stop_ids);
  const std::span<const float> before = {logits.const_data_ptr<float>(),
                                         static_cast<size_t>(logits.numel())};
  if (request.on_choice) {
    request.on_choice(
        {{token, LogProbability(before, token)}, LikeliestTokens(before, request.alternatives)});
  }
  if (request.log_probabilities && !Contains(request.stop_ids, token)) {
    running.answer.log_probabilities.push_back(LogProbability(before, token));
  }
  return token;
}

void BatchGenerator::Offer(Running& running, const Tensor& logits) {
  Search& search = *running.search;
  if (!search.problem.empty()) return;
  const Tensor changed = logits.clone();
  const std::span<float> values(changed.mutable_data_ptr<float>(),
                                static_cast<size_t>(changed.numel()));
  try {
    PenalisedLogProbabilities(values, running.request.sampling,
                              {running.request.prompt, search.beams.beams()[running.beam]},
                              running.request.stop_ids);
    search.beams.Offer(running.beam, values);
  } catch (const UserError& error) {
    search.problem = error.what();
  }
}

// At each token only what it adds can complete a string, but its first characters may have come
// with any token before.
size_t BatchGenerator::FindStopString(const GenerationRequest& request,
                                      std::span<const int32_t> tokens) {
  size_t first = std::string::npos;
  if (request.stop_strings.empty()) return first;
  const std::string text = request.decode(tokens);
  for (const std::string& string : request.stop_strings) {
    first = std::min(first, text.find(string));
  }
  return first;
}

bool BatchGenerator::EndsWithString(Running& running) const {
  running.answer.text_bytes = FindStopString(running.request, running.answer.tokens);
  return running.answer.text_bytes != std::string::npos;
}

// Where longer documents turn at other frequencies, keys that were kept are of the wrong ones.
void BatchGenerator::Lengthen(Running& running) {
  const auto length = static_cast<int64_t>(running.tokens.size());
  const bool is_long = decoder_.IsLong(length);
  if (is_long == std::exchange(running.is_long, is_long)) return;
  running.cached = 0;
  running.prompted = length;
}

bool BatchGenerator::Accept(Running& running, int32_t token) {
  const GenerationRequest& request = running.request;
  GenerationAnswer& answer = running.answer;
  if (Contains(request.stop_ids, token)) {
    answer.reason = EndReason::kStopToken;
    return true;
  }
  answer.tokens.push_back(token);
  running.tokens.push_back(token);
  const bool goes_on = !request.on_token || request.on_token(token);
  if (EndsWithString(running)) {
    answer.reason = EndReason::kStopString;
  } else if (!goes_on) {
    answer.reason = EndReason::kListener;
  } else if (static_cast<int64_t>(answer.tokens.size()) == request.max_new_tokens) {
    answer.reason = EndReason::kLength;
  } else {
    Lengthen(running);
    return false;
  }
  return true;
}

std::vector<GenerationAnswer> BatchGenerator::Step() {
  const at::NoGradGuard no_grad;
  Admit();
  std::vector<bool> done(running_.size());
  std::vector<Piece> answers = Answers();
  // Answers under way are not held up for long by long prompts.
  std::vector<Piece> prompts = Prompts(limits_.step_tokens - Shared(answers));
  if (device_.is_cpu()) {
    // One walk through the weights for both.
    answers.insert(answers.end(), prompts.begin(), prompts.end());
    if (!answers.empty()) Run(answers, /*of_prompts=*/true, done);
  } else if (!prompts.empty() && (answers.empty() || prompts_in_a_row_ < kPromptSteps)) {
    ++prompts_in_a_row_;
    Run(prompts, /*of_prompts=*/true, done);
  } else {
    prompts_in_a_row_ = 0;
    for (size_t first = 0; first < answers.size(); first += PagedDecoder::kTokenTile) {
      const size_t end = std::min(answers.size(), first + PagedDecoder::kTokenTile);
      Run({answers.begin() + static_cast<std::ptrdiff_t>(first),
           answers.begin() + static_cast<std::ptrdiff_t>(end)},
          /*of_prompts=*/false, done);
    }
  }
  return Leave(done);
}

int64_t BatchGenerator::Shared(const std::vector<Piece>& answers) const {
  return device_.is_cpu() ? static_cast<int64_t>(answers.size()) : 0;
}

void BatchGenerator::MoveOn(std::span<Running> beams, std::vector<Running>& left,
                            std::vector<GenerationAnswer>& answers) {
  Search& search = *beams[0].search;
  const GenerationRequest& request = beams[0].request;
  if (!search.problem.empty()) return Finish(beams[0], answers);
  if (!search.beams.complete()) {
    for (Running& beam : beams) left.push_back(std::move(beam));
    return;
  }
  std::vector<size_t> parents =
      search.beams.Advance([&](std::span<const int32_t> tokens) -> std::optional<BeamSearch::End> {
        if (Contains(request.stop_ids, tokens.back())) return {{EndReason::kStopToken, 0}};
        const size_t text_bytes = FindStopString(request, tokens);
        if (text_bytes == std::string::npos) return std::nullopt;
        return {{EndReason::kStopString, text_bytes}};
      });
  if (parents.empty()) return Finish(beams[0], answers);
  // The prompt stands for all beams that begin with it.
  if (beams.size() == 1) std::ranges::fill(parents, size_t{0});
  std::vector<std::vector<int32_t>> tables;
  for (const Running& beam : beams) tables.push_back(beam.pages);
  std::vector<BeamPages::Copy> copies;
  tables = search.pages.Fork(tables, parents, static_cast<int64_t>(beams[0].tokens.size()), copies);
  decoder_.CopyPages(copies);
  std::vector<int32_t> from;
  for (const size_t parent : parents) from.push_back(beams[0].states[parent]);
  decoder_.CopyStates(from, std::span(beams[0].states).first(from.size()));
  for (size_t i = 0; i < parents.size(); ++i) {
    Running next = beams[parents[i]];
    next.beam = i;
    next.pages = std::move(tables[i]);
    next.tokens.push_back(search.beams.beams()[i].back());
    Lengthen(next);
    left.push_back(std::move(next));
  }
  search.running = parents.size();
  moved_ = true;
}

void BatchGenerator::Finish(Running& beam, std::vector<GenerationAnswer>& answers) {
  const Search& search = *beam.search;
  std::vector<BeamSearch::Found> found = search.beams.answers();
  for (size_t i = 0; i < found.size(); ++i) {
    GenerationAnswer answer = beam.answer;
    answer.sample = static_cast<int>(i);
    answer.reason = search.problem.empty() ? found[i].end.reason : EndReason::kFailed;
    answer.problem = search.problem;
    answer.text_bytes = found[i].end.text_bytes;
    answer.score = found[i].score;
    if (search.problem.empty()) answer.tokens = std::move(found[i].tokens);
    if (answer.reason == EndReason::kStopToken) answer.tokens.pop_back();
    answers.push_back(std::move(answer));
  }
  pages_.GiveBack(search.pages.all());
  states_.GiveBack(beam.states);
  moved_ = true;
}

std::vector<GenerationAnswer> BatchGenerator::Leave(const std::vector<bool>& done) {
  std::vector<GenerationAnswer> answers;
  std::vector<Running> left;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].search) {
      const size_t beams = running_[i].search->running;
      MoveOn(std::span(running_).subspan(i, beams), left, answers);
      i += beams - 1;
      continue;
    }
    if (!done[i]) {
      left.push_back(std::move(running_[i]));
      continue;
    }
    pages_.GiveBack(running_[i].pages);
    states_.GiveBack(running_[i].states);
    answers.push_back(std::move(running_[i].answer));
    moved_ = true;
  }
  running_ = std::move(left);
  return answers;
}

}  // namespace sft::engine
