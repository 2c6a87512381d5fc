#include "worker/rank/serve_job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/data/prompt_row.h"
#include "worker/engine/base/error.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/prompt_rows.h"
#include "worker/rank/stop_signal.h"

namespace sft::rank {
namespace {

constexpr int kIdleMs = 200;
constexpr int kBacklog = 64;
constexpr size_t kMostAskers = 256, kMostQuestionBytes = size_t{5} << 20;
constexpr int64_t kConversationTokens = 4096;
constexpr Nanos kSilence = std::chrono::seconds(5);

void ThrowErrno(const std::string& what) {
  throw engine::InfrastructureError(fmt::format("{}: {}", what, strerror(errno)));
}

// How many bytes of the text are whole characters and no beginning of a stop text.
size_t SettledBytes(const std::string& text, const std::vector<std::string>& stops) {
  size_t settled = text.size();
  for (const std::string& stop : stops) {
    for (size_t length = std::min(stop.size() - 1, text.size()); length > 0; --length) {
      if (!text.ends_with(std::string_view(stop).substr(0, length))) continue;
      settled = std::min(settled, text.size() - length);
      break;
    }
  }
  // A character of which a token has only a part is shown as U+FFFD until the rest comes.
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  while (settled >= kReplacement.size() &&
         std::string_view(text).substr(0, settled).ends_with(kReplacement)) {
    settled -= kReplacement.size();
  }
  return settled;
}

template <typename T>
void Take(const nlohmann::ordered_json& question, const char* key, T& value) {
  const auto found = question.find(key);
  if (found == question.end()) return;
  if (!found->is_number()) throw engine::UserError(fmt::format("{} is no number", key));
  value = found->get<T>();
}

}  // namespace

bool ServeJob::Stopped() {
  context_.commands.Poll();
  const std::string& reason = context_.commands.stop_reason();
  if (reason.empty() && !StopSignalled()) return false;
  fmt::print("stopped: {}\n", reason.empty() ? "SIGTERM" : reason);
  return true;
}

void ServeJob::Load() {
  const channel::RankLaunch& file = context_.launch.file;
  const Device device = OpenDevice(file.device, LocalRank(file.first_rank, file, GetEnv));
  at::set_num_threads(file.threads_per_rank);
  at::set_num_interop_threads(1);
  LimitMemory(context_.launch.spec, device);
  options_ = OptionsFor(context_.launch);
  CheckOptions(options_);
  tokenizer_.emplace(OpenTokenizer(options_));
  generator_.emplace(ModelOf(options_, options_.adapter, device));
  MakeBatch(device);
  const double seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
  fmt::print("serves on {}, ready after {:.1f} s\n", device.Name(), seconds);
  context_.events.Write(channel::ReadyEvent{
      .rank = file.first_rank, .world = 1, .device = device.Name(), .seconds = seconds});
}

// Each of the questions that are answered at once has room for a long conversation and its answer.
void ServeJob::MakeBatch(const Device& device) {
  const int64_t positions = generator_->config().max_positions;
  int64_t longest = options_.max_new_tokens + kConversationTokens;
  if (positions > 0) longest = std::min(longest, positions);
  const CacheRoom room = CacheRoomOf(options_, *generator_, device);
  const int64_t tokens = CacheTokens(options_.most_requests, longest, room);
  batch_ = generator_->MakeBatch({.cache_tokens = tokens, .most_requests = options_.most_requests});
  fmt::print("keeps keys and values of {} tokens: {}\n", tokens,
             BytesText(tokens * room.token_bytes));
}

io::UniqueFd ServeJob::Listen() const {
  const std::string& path = context_.launch.file.serve_socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw engine::InfrastructureError(path + " is too long for a socket");
  }
  memcpy(address.sun_path, path.data(), path.size());
  io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  unlink(path.c_str());
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    ThrowErrno("cannot listen on " + path);
  }
  return fd;
}

void ServeJob::Receive(int listener) {
  std::vector<pollfd> entries = {{listener, POLLIN, 0}};
  for (const Asker& asker : askers_) {
    const short events = static_cast<short>(POLLIN | (asker.unsent.empty() ? 0 : POLLOUT));
    entries.push_back({asker.fd.get(), events, 0});
  }
  if (poll(entries.data(), entries.size(), batch_->idle() ? kIdleMs : 0) <= 0) return;
  size_t index = 1;
  for (Asker& asker : askers_) {
    const short seen = entries[index++].revents;
    if ((seen & (POLLIN | POLLHUP | POLLERR)) != 0) Read(asker);
    if ((seen & POLLOUT) != 0) Send(asker);
  }
  if ((entries[0].revents & POLLIN) == 0 || askers_.size() >= kMostAskers) return;
  io::UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  Asker& asker = askers_.emplace_back();
  asker.fd = std::move(fd);
  asker.told = context_.clock.Mono();
}

void ServeJob::Read(Asker& asker) {
  char buffer[65536];
  const ssize_t got = recv(asker.fd.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    asker.gone = true;
    return;
  }
  if (asker.asked) return;  // one question a connection
  asker.read.append(buffer, static_cast<size_t>(got));
  const size_t end = asker.read.find('\n');
  if (end == std::string::npos) {
    if (asker.read.size() > kMostQuestionBytes) asker.gone = true;
    return;
  }
  asker.read.resize(end);
  asker.asked = true;
  try {
    Begin(asker);
  } catch (const engine::UserError& error) {
    Fail(asker, error.what());
  }
}

void ServeJob::Begin(Asker& asker) {
  nlohmann::ordered_json question = ParseOrderedJson(asker.read);
  if (!question.is_object()) throw engine::UserError("the question is no JSON object");
  engine::GenerationRequest request;
  request.max_new_tokens = options_.max_new_tokens;
  request.sampling = options_.sampling;
  Take(question, "max_new_tokens", request.max_new_tokens);
  Take(question, "temperature", request.sampling.temperature);
  Take(question, "top_p", request.sampling.top_p);
  Take(question, "seed", request.sampling.seed);
  const auto base = question.find("base");
  request.adapter = base == question.end() || *base != true;
  for (const char* key : {"max_new_tokens", "temperature", "top_p", "seed", "base"}) {
    question.erase(key);
  }
  for (const char* key : {"num_beams", "length_penalty", "early_stopping"}) {
    if (!question.contains(key)) continue;
    throw engine::UserError(
        fmt::format("{}: a job that serves gives its answers token by token, a search with beams "
                    "at its end; ask beams of a job of kind = \"generate\"",
                    key));
  }
  const absl::StatusOr<data::PromptRow> row = data::ReadPromptRow(DumpJson(question));
  if (!row.ok()) throw engine::UserError(std::string(Message(row.status())));
  request.prompt = EncodeRow(*tokenizer_, *row);
  asker.prompt_tokens = request.prompt.size();
  // Who asks for more than can be answered gets what can: "length" says so. A prompt for which
  // there is no room at all is refused.
  const int64_t most = batch_->MostNewTokens(static_cast<int64_t>(asker.prompt_tokens));
  if (most > 0) request.max_new_tokens = std::min(request.max_new_tokens, most);
  request.stop_ids = tokenizer_->stop_ids();
  request.stop_strings = asker.stop = options_.stop;
  request.decode = [this](std::span<const int32_t> ids) { return tokenizer_->DecodeAnswer(ids); };
  request.on_token = [&asker](int32_t token) {
    asker.tokens.push_back(token);
    return !asker.gone;
  };
  requests_[batch_->Add(std::move(request))] = &asker;
}

void ServeJob::Tell(Asker& asker, bool all) {
  const std::string text = tokenizer_->DecodeAnswer(asker.tokens);
  const size_t settled = all ? text.size() : SettledBytes(text, asker.stop);
  if (settled <= asker.told_bytes) return;
  asker.unsent += DumpJson(nlohmann::json{
                      {"text", text.substr(asker.told_bytes, settled - asker.told_bytes)}}) +
                  "\n";
  asker.told_bytes = settled;
}

void ServeJob::Finish(Asker& asker, const engine::GenerationAnswer& made) {
  asker.tokens = made.tokens;
  if (made.reason == engine::EndReason::kStopString) {
    const std::string text = tokenizer_->DecodeAnswer(made.tokens).substr(0, made.text_bytes);
    if (text.size() > asker.told_bytes) {
      asker.unsent += DumpJson(nlohmann::json{{"text", text.substr(asker.told_bytes)}}) + "\n";
    }
  } else {
    Tell(asker, /*all=*/true);
  }
  nlohmann::json end = {{"finish_reason", FinishReason(made)},
                        {"prompt_tokens", asker.prompt_tokens},
                        {"answer_tokens", made.tokens.size()}};
  if (!made.problem.empty()) end["error"] = made.problem;
  asker.unsent += DumpJson(end) + "\n";
  asker.finished = true;
}

void ServeJob::Fail(Asker& asker, const std::string& error) {
  asker.unsent += DumpJson(nlohmann::json{{"finish_reason", "error"}, {"error", error}}) + "\n";
  asker.finished = true;
}

void ServeJob::Send(Asker& asker) {
  while (!asker.unsent.empty()) {
    const ssize_t sent =
        send(asker.fd.get(), asker.unsent.data(), asker.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent <= 0) {
      asker.gone = true;
      return;
    }
    asker.unsent.erase(0, static_cast<size_t>(sent));
    asker.told = context_.clock.Mono();
  }
}

void ServeJob::Step() {
  for (const engine::GenerationAnswer& made : batch_->Step()) {
    const auto found = requests_.find(made.request);
    Finish(*found->second, made);
    requests_.erase(found);
  }
  const MonoTime now = context_.clock.Mono();
  for (Asker& asker : askers_) {
    if (asker.asked && !asker.finished) Tell(asker, /*all=*/false);
    if (asker.asked && asker.unsent.empty() && now - asker.told > kSilence) {
      asker.unsent = "{\"text\":\"\"}\n";
    }
    Send(asker);
  }
  // One whose answer is still made stays until the generator has heard that nobody wants it.
  std::erase_if(askers_, [&](const Asker& asker) {
    const bool in_work = std::any_of(requests_.begin(), requests_.end(),
                                     [&](const auto& each) { return each.second == &asker; });
    return !in_work && (asker.gone || (asker.finished && asker.unsent.empty()));
  });
}

channel::ExitCode ServeJob::Run() {
  const channel::RankLaunch& file = context_.launch.file;
  if (auto flight = OpenFlightRecord(file, file.first_rank, context_.clock)) {
    flight_.emplace(*std::move(flight));
  }
  if (flight_) flight_->SetPhase(channel::FlightPhase::kLoading);
  Load();
  const io::UniqueFd listener = Listen();
  while (!Stopped()) {
    Receive(listener.get());
    Step();
    // It stands still for as long as nobody asks, and hangs as little as that.
    if (flight_) flight_->SetPhase(channel::FlightPhase::kTraining);
  }
  unlink(file.serve_socket.c_str());
  context_.events.Sync();
  return channel::kExitStopped;
}

}  // namespace sft::rank
