#include "worker/engine/generate/batch_generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

// The tokens above which documents turn at other frequencies; 0: there are none.
int64_t LongFrom(const ModelConfig& config) {
  for (const RopeOptions& rope : config.ropes) {
    if (rope.type == RopeType::kLongRope) return rope.original_max_positions;
  }
  return 0;
}

template <typename T>
Tensor OnDevice(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  return at::tensor(at::ArrayRef<T>(values), type).to(device);
}

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
  if (request.max_new_tokens < 1) {
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
}

}  // namespace

BatchGenerator::BatchGenerator(const ModelConfig& config, Decoder& decoder, at::Device device,
                               at::ScalarType compute, bool optional_adapters,
                               const BatchOptions& options)
    : config_(config),
      decoder_(decoder),
      options_(at::TensorOptions(device).dtype(compute)),
      optional_adapters_(optional_adapters),
      limits_(options),
      pages_(PageTable::PagesFor(options.cache_tokens)),
      layers_(decoder.blocks().size()),
      tables_(decoder, LongFrom(config), device) {}

int64_t BatchGenerator::Add(GenerationRequest request) {
  CheckRequest(request, config_.vocab);
  const int64_t most = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (config_.learned_positions > 0 && most > config_.learned_positions) {
    throw UserError(
        fmt::format("the model has a table of {} positions: a prompt of {} tokens and "
                    "{} new ones do not fit",
                    config_.learned_positions, request.prompt.size(), request.max_new_tokens),
        "bad_prompt", "give a shorter prompt, or ask for fewer tokens");
  }
  if (PageTable::PagesFor(most) > pages_.most()) {
    throw UserError(
        fmt::format("a prompt of {} tokens and {} new ones do not fit into keys and values of "
                    "{} tokens",
                    request.prompt.size(), request.max_new_tokens, limits_.cache_tokens),
        "bad_prompt", "give a shorter prompt, or ask for fewer tokens");
  }
  if (!request.adapter && !optional_adapters_) {
    throw UserError(
        "the adapter takes the place of whole tensors of its base, so the base alone "
        "cannot answer beside it",
        "bad_prompt", "ask the base without the adapter");
  }
  Running made;
  made.number = made.answer.request = added_++;
  made.tokens = request.prompt;
  made.is_long = tables_.IsLong(static_cast<int64_t>(made.tokens.size()));
  made.request = std::move(request);
  waiting_.push_back(std::move(made));
  return waiting_.back().number;
}

void BatchGenerator::Admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.most_requests) {
    Running& next = waiting_.front();
    const int64_t tokens =
        static_cast<int64_t>(next.request.prompt.size()) + next.request.max_new_tokens;
    const int64_t pages = PageTable::PagesFor(tokens);
    if (!pages_.HasRoom(pages)) break;
    next.pages = pages_.Take(pages);
    tables_.Reserve(tokens);
    running_.push_back(std::move(next));
    waiting_.pop_front();
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const SelfAttention& attention = decoder_.blocks()[layer].attention;
    if (attention.borrows) continue;
    layers_[layer].Reserve(pages_.touched(), pages_.most(),
                           {attention.kv_heads, attention.head_dim}, options_);
  }
}

// Answers under way first: a long prompt must not hold them up.
std::vector<BatchGenerator::Piece> BatchGenerator::PlanStep() const {
  std::vector<Piece> pieces;
  int64_t room = std::max(limits_.step_tokens, static_cast<int64_t>(running_.size()));
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].missing() != 1) continue;
    pieces.push_back({i, 1});
    --room;
  }
  for (size_t i = 0; i < running_.size() && room > 0; ++i) {
    if (running_[i].missing() == 1) continue;
    const int64_t count = std::min(room, running_[i].missing());
    pieces.push_back({i, count});
    room -= count;
  }
  return pieces;
}

BatchGenerator::StepInputs BatchGenerator::MakeInputs(const std::vector<Piece>& pieces) const {
  std::vector<int64_t> tokens, positions, slots, places, is_long;
  std::vector<float> adapted;
  std::vector<int64_t> last_rows;
  size_t widest = 1;
  for (const Piece& piece : pieces) widest = std::max(widest, running_[piece.running].pages.size());
  std::vector<int32_t> tables;
  for (size_t row = 0; row < pieces.size(); ++row) {
    const Running& running = running_[pieces[row].running];
    tables.insert(tables.end(), running.pages.begin(), running.pages.end());
    tables.resize((row + 1) * widest, 0);
    for (int64_t i = 0; i < pieces[row].count; ++i) {
      const int64_t position = running.cached + i;
      const int64_t page = running.pages[static_cast<size_t>(position / PageTable::kPageTokens)];
      tokens.push_back(running.tokens[static_cast<size_t>(position)]);
      positions.push_back(position);
      slots.push_back(page * PageTable::kPageTokens + position % PageTable::kPageTokens);
      places.insert(places.end(), {static_cast<int64_t>(row), position});
      is_long.push_back(running.is_long ? 1 : 0);
      adapted.push_back(running.request.adapter ? 1.0f : 0.0f);
    }
    if (pieces[row].count == running.missing()) {
      last_rows.push_back(static_cast<int64_t>(tokens.size()) - 1);
    }
  }
  const at::Device device = options_.device();
  StepInputs inputs;
  inputs.tokens = OnDevice(tokens, at::kLong, device);
  inputs.positions = OnDevice(positions, at::kLong, device);
  inputs.slots = OnDevice(slots, at::kLong, device);
  inputs.places = OnDevice(places, at::kLong, device).view({-1, 2});
  inputs.tables = OnDevice(tables, at::kInt, device).view({-1, static_cast<int64_t>(widest)});
  inputs.is_long = OnDevice(is_long, at::kLong, device).ne(0);
  if (std::find(adapted.begin(), adapted.end(), 0.0f) != adapted.end()) {
    inputs.adapter_rows = OnDevice(adapted, at::kFloat, device).to(options_).view({-1, 1});
  }
  inputs.last_rows = std::move(last_rows);
  return inputs;
}

Tensor BatchGenerator::RunBlock(size_t layer, const Tensor& x, const BlockContext& context,
                                const StepInputs& inputs) {
  const DecoderBlock& block = decoder_.blocks()[layer];
  AcquiredUnit unit(decoder_.source(), decoder_.layout(), static_cast<int>(layer) + 1);
  const Pass pass{unit.weights(), decoder_.lora(), nullptr, /*by_row=*/true, inputs.adapter_rows};
  LayerPages& kept = layers_[static_cast<size_t>(block.keys_of)];
  return block.ForwardWith(x, context, pass, [&](const SelfAttention::Heads& projected) {
    if (!block.attention.borrows) kept.Write(inputs.slots, projected.k, projected.v);
    Tensor out = at::empty(projected.q.sizes(), projected.q.options());
    ops::PagedAttention(out, projected.q, kept.k, kept.v, inputs.tables, inputs.places,
                        block.attention.scale, block.attention.window);
    return out.view({x.size(0), -1});
  });
}

Tensor BatchGenerator::Forward(const StepInputs& inputs) {
  BlockContext context;
  context.ropes = tables_.At(inputs.positions, inputs.is_long);
  context.links = decoder_.MakeLinks();
  Tensor x = decoder_.Embed(inputs.tokens, inputs.positions);
  context.links->inputs = decoder_.InputsOfLayers(inputs.tokens, x, /*by_row=*/true);
  for (size_t layer = 0; layer < layers_.size(); ++layer) x = RunBlock(layer, x, context, inputs);
  if (inputs.last_rows.empty()) return {};
  const Tensor rows = OnDevice(inputs.last_rows, at::kLong, options_.device());
  return decoder_.HeadByRow(at::index_select(x, 0, rows)).to(at::kCPU, at::kFloat).contiguous();
}

// At each token only what it adds can complete a string, but its first characters may have come
// with any token before.
bool BatchGenerator::EndsWithString(Running& running) const {
  const std::vector<std::string>& strings = running.request.stop_strings;
  if (strings.empty()) return false;
  const std::string text = running.request.decode(running.answer.tokens);
  size_t first = std::string::npos;
  for (const std::string& string : strings) first = std::min(first, text.find(string));
  running.answer.text_bytes = first;
  return first != std::string::npos;
}

bool BatchGenerator::Accept(Running& running, std::span<float> logits) {
  const GenerationRequest& request = running.request;
  GenerationAnswer& answer = running.answer;
  std::vector<float> given;
  if (request.log_probabilities) given.assign(logits.begin(), logits.end());
  int32_t token = 0;
  try {
    token = NextToken(logits, request.sampling, {request.prompt, answer.tokens}, request.stop_ids);
  } catch (const UserError& error) {
    answer.reason = EndReason::kFailed;
    answer.problem = error.what();
    return true;
  }
  if (Contains(request.stop_ids, token)) {
    answer.reason = EndReason::kStopToken;
    return true;
  }
  answer.tokens.push_back(token);
  running.tokens.push_back(token);
  if (request.log_probabilities) answer.log_probabilities.push_back(LogProbability(given, token));
  const bool goes_on = !request.on_token || request.on_token(token);
  if (EndsWithString(running)) {
    answer.reason = EndReason::kStopString;
  } else if (!goes_on) {
    answer.reason = EndReason::kListener;
  } else if (static_cast<int64_t>(answer.tokens.size()) == request.max_new_tokens) {
    answer.reason = EndReason::kLength;
  } else {
    // Where longer documents turn at other frequencies, keys that were kept are of the wrong ones.
    const bool is_long = tables_.IsLong(static_cast<int64_t>(running.tokens.size()));
    if (is_long != std::exchange(running.is_long, is_long)) running.cached = 0;
    return false;
  }
  return true;
}

std::vector<GenerationAnswer> BatchGenerator::Step() {
  const at::NoGradGuard no_grad;
  Admit();
  const std::vector<Piece> pieces = PlanStep();
  if (pieces.empty()) return {};
  const Tensor logits = Forward(MakeInputs(pieces));
  float* row = logits.defined() ? logits.mutable_data_ptr<float>() : nullptr;
  std::vector<bool> done(running_.size());
  for (const Piece& piece : pieces) {
    Running& running = running_[piece.running];
    running.cached += piece.count;
    if (running.missing() > 0) continue;
    const auto width = static_cast<size_t>(logits.size(1));
    done[piece.running] = Accept(running, {row, width});
    row += width;
  }
  std::vector<GenerationAnswer> answers;
  std::vector<Running> left;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!done[i]) {
      left.push_back(std::move(running_[i]));
      continue;
    }
    pages_.GiveBack(running_[i].pages);
    answers.push_back(std::move(running_[i].answer));
  }
  running_ = std::move(left);
  return answers;
}

}  // namespace sft::engine
