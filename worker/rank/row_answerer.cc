#include "worker/rank/row_answerer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/host_memory.h"
#include "common/io/sha256.h"
#include "common/spec/template_settings.h"
#include "worker/engine/base/error.h"
#include "worker/engine/model/config.h"
#include "worker/engine/nn/dropout.h"
#include "worker/rank/prompt_rows.h"

namespace sft::rank {
namespace {

namespace fs = std::filesystem;
using AnswerJson = nlohmann::ordered_json;

template <typename T>
T ReadOrThrow(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  throw engine::UserError(std::string(Message(value.status())));
}

// Names and bytes of all files of a folder.
std::string HashOfFolder(const std::string& folder) {
  io::Sha256 hash;
  for (const std::string& name : ReadOrThrow(io::ListDir(folder))) {
    const std::string path = folder + "/" + name;
    if (io::IsDirectory(path)) continue;
    hash.Update(fmt::format("{} {}\n", name, ReadOrThrow(io::HashFile(path)).sha256));
  }
  return hash.FinishHex();
}

// The first bytes of a safetensors file say how long its header is.
std::string HeaderOf(const std::string& path) {
  constexpr size_t kLength = 8, kLongest = size_t{100} << 20;
  const io::UniqueFd fd = ReadOrThrow(io::OpenForRead(path));
  std::string bytes(kLength, '\0');
  const auto read = [&](int64_t from) {
    bytes.resize(ReadOrThrow(io::ReadAt(fd.get(), from, bytes.data(), bytes.size(), path)));
  };
  read(0);
  uint64_t length = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.resize(std::min<uint64_t>(length, kLongest));
  read(kLength);
  return bytes;
}

// A base of many gigabytes is not read for its name.
std::string NameOfBase(const std::string& folder) {
  io::Sha256 hash;
  for (const std::string& name : ReadOrThrow(io::ListDir(folder))) {
    const std::string path = folder + "/" + name;
    if (name.ends_with(".safetensors")) {
      hash.Update(fmt::format("{} {}\n", name, ReadOrThrow(io::FileSize(path))));
      hash.Update(HeaderOf(path));
    } else if (name == "config.json" || name == "tokenizer.json") {
      hash.Update(ReadOrThrow(io::ReadFile(path)));
    }
  }
  return hash.FinishHex();
}

}  // namespace

std::string FinishReason(const engine::GenerationAnswer& made) {
  switch (made.reason) {
    case engine::EndReason::kLength:
      return "length";
    case engine::EndReason::kFailed:
      return "error";
    default:
      return "stop";
  }
}

engine::GeneratorOptions ModelOf(const AnswerOptions& options, const std::string& adapter,
                                 const Device& device) {
  return {.model_dir = options.model,
          .adapter_dir = adapter,
          .device = device.torch,
          .nf4 = options.nf4};
}

int64_t RowsAtOnce(const AnswerOptions& options, int64_t requests) {
  return std::min<int64_t>(options.most_requests, requests) * options.beams.beams;
}

void CheckOptions(const AnswerOptions& options) {
  engine::CheckSampling(options.sampling);
  engine::CheckBeams(options.beams);
  if (std::ranges::find(options.stop, "") != options.stop.end()) {
    throw engine::UserError("a stop text is empty", "bad_sampling", "leave it out");
  }
}

void CheckPositions(int64_t prompt_tokens, int64_t new_tokens, int64_t positions) {
  if (positions <= 0 || prompt_tokens + new_tokens <= positions) return;
  throw engine::UserError(
      fmt::format("{} tokens and {} new ones are more than the model's {} positions", prompt_tokens,
                  new_tokens, positions),
      "bad_prompt", "give a shorter prompt, or ask for fewer tokens (generate.max_new_tokens)");
}

namespace {

// Without what states of gated DeltaNets take, of all that are answered at once.
CacheRoom BesideStates(CacheRoom room, const AnswerOptions& options,
                       const engine::Generator& generator) {
  const int64_t states = generator.StateBytes() * options.most_requests * options.beams.beams;
  room.free_bytes = std::max<int64_t>(0, room.free_bytes - states);
  room.usable_bytes = std::max<int64_t>(0, room.usable_bytes - states);
  return room;
}

}  // namespace

CacheRoom CacheRoomOf(const AnswerOptions& options, const engine::Generator& generator,
                      const Device& device) {
  CacheRoom room{.token_bytes = generator.CacheTokenBytes(), .device = device.Name()};
  if (device.cuda == nullptr) {
    room.free_bytes = ReadOrThrow(io::AvailableMemory()) / std::max(options.processes, 1);
    room.usable_bytes = room.free_bytes / 4;
    return BesideStates(room, options, generator);
  }
  const int index = device.torch.index();
  const engine::CudaMemory held = device.cuda->devices->Memory(index);
  room.free_bytes = device.cuda->devices->DriverMemory(index).free + held.reserved - held.allocated;
  if (options.memory_budget_gb > 0) {
    const auto budget = static_cast<int64_t>(options.memory_budget_gb * 1e9);
    room.free_bytes = std::min(room.free_bytes, std::max<int64_t>(0, budget - held.allocated));
  }
  room.usable_bytes = room.free_bytes / 10 * 9;
  return BesideStates(room, options, generator);
}

engine::ChatTokenizer OpenTokenizer(const AnswerOptions& options) {
  const fs::path adapter = options.adapter;
  const bool own = !options.adapter.empty() && fs::exists(adapter / "tokenizer.json");
  return engine::ChatTokenizer::Open(own ? adapter : fs::path(options.model), options.chat_template,
                                     options.settings);
}

engine::GenerationRequest RowAnswerer::RequestFor(const AnswerOptions& options,
                                                  const data::PromptRow& row,
                                                  int64_t number) const {
  engine::GenerationRequest request;
  request.prompt = EncodeRow(tokenizer_, row);
  request.max_new_tokens = options.max_new_tokens;
  request.sampling = options.sampling;
  request.sampling.seed = engine::MixSeed(options.sampling.seed, static_cast<uint64_t>(number));
  request.beams = options.beams;
  request.stop_ids = tokenizer_.stop_ids();
  request.stop_strings = options.stop;
  if (!options.stop.empty()) {
    request.decode = [this](std::span<const int32_t> ids) { return tokenizer_.DecodeAnswer(ids); };
  }
  return request;
}

RowAnswerer::RowAnswerer(const AnswerOptions& options, const Prompts& prompts, int64_t first,
                         int64_t last, const Device& device)
    : next_(first), first_(first), last_(last), tokenizer_(OpenTokenizer(options)) {
  if (first == last) return;
  const auto row_of = [&](int64_t number) -> const data::PromptRow& {
    return prompts.rows[static_cast<size_t>(number / options.samples)];
  };
  const int64_t positions = engine::ReadConfig(options.model).max_positions;
  std::vector<engine::GenerationRequest> requests;
  int64_t longest = 0;
  const auto naming = [&](int64_t number, const auto& use) {
    try {
      use();
    } catch (const engine::UserError& error) {
      if (row_of(number).line == 0) throw;
      throw engine::UserError(
          fmt::format("{}: {}", PlaceOf(prompts.file, row_of(number)), error.what()), "bad_prompt",
          error.advice());
    }
  };
  // A search gives all of a prompt's answers, those too that are not of this share.
  const int64_t each = options.beams.beams > 1 ? options.samples : 1;
  for (int64_t i = first / each * each; i < last; i += each) {
    naming(i, [&] {
      requests.push_back(RequestFor(options, row_of(i), i));
      CheckPositions(static_cast<int64_t>(requests.back().prompt.size()), options.max_new_tokens,
                     positions);
    });
    numbers_.push_back(i);
    prompt_tokens_.push_back(requests.back().prompt.size());
    longest = std::max(
        longest, engine::BatchGenerator::TokensOf(static_cast<int64_t>(prompt_tokens_.back()),
                                                  options.max_new_tokens, options.beams.beams));
  }
  generator_.emplace(ModelOf(options, options.adapter, device));
  const auto count = static_cast<int64_t>(requests.size());
  const int64_t at_once = std::min<int64_t>(options.most_requests, count);
  const CacheRoom room = CacheRoomOf(options, *generator_, device);
  batch_ = generator_->MakeBatch(
      {.cache_tokens = CacheTokens(at_once, longest, room, options.beams.beams),
       .most_requests = RowsAtOnce(options, count)});
  for (size_t i = 0; i < requests.size(); ++i) {
    naming(numbers_[i], [&] { batch_->Add(std::move(requests[i])); });
  }
}

RowAnswer RowAnswerer::AnswerOf(const engine::GenerationAnswer& made) const {
  RowAnswer answer;
  answer.text = tokenizer_.DecodeAnswer(made.tokens);
  answer.thoughts = tokenizer_.DecodeThoughts(made.tokens);
  if (made.reason == engine::EndReason::kStopString) answer.text.resize(made.text_bytes);
  answer.prompt_tokens = prompt_tokens_[static_cast<size_t>(made.request)];
  answer.tokens = made.tokens.size();
  answer.finish_reason = FinishReason(made);
  answer.error = made.problem;
  return answer;
}

bool RowAnswerer::Step(const Take& take) {
  if (next_ == last_) return false;
  for (const engine::GenerationAnswer& made : batch_->Step()) {
    const int64_t number = numbers_[static_cast<size_t>(made.request)] + made.sample;
    if (number < first_ || number >= last_) continue;
    tokens_ += static_cast<int64_t>(made.tokens.size());
    early_.emplace(number, AnswerOf(made));
  }
  for (auto found = early_.find(next_); found != early_.end(); found = early_.find(++next_)) {
    take(found->first, found->second);
    early_.erase(found);
  }
  return next_ < last_;
}

std::string LineOf(const Prompts& prompts, int samples, int64_t number, const RowAnswer& answer) {
  AnswerJson line = prompts.rows[static_cast<size_t>(number / samples)].members;
  if (samples > 1) line["sample"] = number % samples;
  line["answer"] = answer.text;
  if (!answer.thoughts.empty()) line["reasoning"] = answer.thoughts;
  line["finish_reason"] = answer.finish_reason;
  if (!answer.error.empty()) line["error"] = answer.error;
  line["prompt_tokens"] = answer.prompt_tokens;
  line["answer_tokens"] = answer.tokens;
  return DumpJson(line);
}

std::string RunOf(const AnswerOptions& options, const Prompts& prompts, int ranks) {
  io::Sha256 rows;
  for (const data::PromptRow& row : prompts.rows) rows.Update(DumpJson(row.members) + "\n");
  const engine::SamplingOptions& sampling = options.sampling;
  AnswerJson run = {{"prompts", rows.FinishHex()},
                    {"rows", prompts.rows.size()},
                    {"model", NameOfBase(options.model)},
                    {"adapter", options.adapter.empty() ? "" : HashOfFolder(options.adapter)},
                    {"chat template", options.chat_template},
                    {"max_new_tokens", options.max_new_tokens},
                    {"samples", options.samples},
                    {"temperature", sampling.temperature},
                    {"top_k", sampling.top_k},
                    {"top_p", sampling.top_p},
                    {"min_p", sampling.min_p},
                    {"repetition_penalty", sampling.repetition_penalty},
                    {"frequency_penalty", sampling.frequency_penalty},
                    {"presence_penalty", sampling.presence_penalty},
                    {"no_repeat_ngram", sampling.no_repeat_ngram},
                    {"min_new_tokens", sampling.min_new_tokens},
                    {"seed", sampling.seed},
                    {"stop", options.stop},
                    {"processes", ranks}};
  // Left out where an earlier version, which knew neither, would have answered alike.
  const engine::TemplateSettings& settings = options.settings;
  if (settings.day != spec::kFormerTemplateDate) run["template date"] = settings.day;
  if (!settings.arguments.empty()) run["template arguments"] = settings.arguments;
  if (options.nf4) run["nf4"] = true;
  if (options.beams.beams > 1) {
    run["num_beams"] = options.beams.beams;
    run["length_penalty"] = options.beams.length_penalty;
    run["early_stopping"] = static_cast<int>(options.beams.stop);
  }
  return DumpJson(run, 2) + "\n";
}

}  // namespace sft::rank
