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

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "worker/engine/base/error.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/stop_signal.h"

namespace sft::rank {
namespace {

constexpr int kIdleMs = 200;
constexpr int kBacklog = 64;
constexpr size_t kMostAskers = 256, kMostQuestionBytes = size_t{5} << 20;
constexpr size_t kMostUnsentBytes = size_t{16} << 20;
constexpr int64_t kConversationTokens = 4096, kStepTokensOfCpu = 128;
constexpr Nanos kSilence = std::chrono::seconds(5);
// What a process on another node had under way when it died, which ends this one too, comes so
// late.
constexpr Nanos kLate = std::chrono::seconds(1);

void ThrowErrno(const std::string& what) {
  throw engine::InfrastructureError(fmt::format("{}: {}", what, strerror(errno)));
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
  const Device device = OpenDevice(file.device, LocalRank(context_.rank, file, GetEnv));
  at::set_num_threads(file.threads_per_rank);
  at::set_num_interop_threads(1);
  LimitMemory(context_.launch.spec, device);
  options_ = OptionsFor(context_.launch);
  CheckOptions(options_);
  tokenizer_.emplace(OpenTokenizer(options_));
  generator_.emplace(ModelOf(options_, options_.adapter, device));
  MakeBatch(device);
  const double seconds = SecondsOf(context_.clock.Mono() - context_.process_start);
  fmt::print("rank {} of world size {} serves on {}, ready after {:.1f} s\n", context_.rank,
             file.world_size, device.Name(), seconds);
  context_.events.Write(channel::ReadyEvent{.rank = context_.rank,
                                            .world = file.world_size,
                                            .device = device.Name(),
                                            .seconds = seconds});
}

// Each of the questions that are answered at once has room for a long conversation and its answer.
void ServeJob::MakeBatch(const Device& device) {
  const int64_t positions = generator_->config().max_positions;
  longest_ = options_.max_new_tokens + kConversationTokens;
  if (positions > 0) longest_ = std::min(longest_, positions);
  const CacheRoom room = CacheRoomOf(options_, *generator_, device);
  const int64_t tokens = CacheTokens(options_.most_requests, longest_, room);
  // A step of a CPU takes long, and between two steps those who wait hear that somebody is there.
  const int64_t step =
      device.torch.is_cpu() ? kStepTokensOfCpu : engine::BatchOptions().step_tokens;
  batch_ = generator_->MakeBatch(
      {.cache_tokens = tokens, .most_requests = options_.most_requests, .step_tokens = step});
  fmt::print("keeps keys and values of {} tokens: {}\n", tokens,
             BytesText(tokens * room.token_bytes));
}

std::string ServeJob::SocketPath() const {
  const channel::RankLaunch& file = context_.launch.file;
  return file.serve_socket + std::to_string(context_.rank - file.first_rank);
}

io::UniqueFd ServeJob::Listen() const {
  const std::string path = SocketPath();
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
  if ((entries[0].revents & POLLIN) == 0) return;
  while (askers_.size() < kMostAskers) {
    io::UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    Asker& asker = askers_.emplace_back();
    asker.fd = std::move(fd);
    asker.told = context_.clock.Mono();
  }
}

void ServeJob::Read(Asker& asker) {
  char buffer[65536];
  while (!asker.gone) {
    const ssize_t got = recv(asker.fd.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      asker.gone = true;
    } else if (!asker.asked) {  // one question a connection
      TakeBytes(asker, {buffer, static_cast<size_t>(got)});
    }
  }
}

void ServeJob::TakeBytes(Asker& asker, std::string_view bytes) {
  asker.read.append(bytes);
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
  asker.question = ReadQuestion(asker.read, options_);
  asker.read.clear();
  if (asker.question.kind == ServeQuestion::Kind::kAnswer) return MakeRequests(asker);
  const int64_t positions = generator_->config().max_positions;
  const int64_t room = batch_->MostNewTokens(0);
  asker.unsent +=
      TokenizerLines(asker.question, *tokenizer_, positions > 0 ? std::min(positions, room) : room);
  asker.finished = true;
}

// Room is kept for the longest answer from its start: without a limit to it one question could take
// all that there is.
int64_t ServeJob::MostNewTokens(int64_t prompt, int64_t wanted) const {
  const int64_t fair = std::max(longest_ - prompt, options_.max_new_tokens);
  int64_t there_is = batch_->MostNewTokens(prompt);
  const int64_t positions = generator_->config().max_positions;
  if (positions > 0) there_is = std::min(there_is, positions - prompt);
  if (there_is >= std::min<int64_t>(wanted, 1)) return std::min(fair, there_is);
  throw engine::UserError(
      fmt::format("the prompt has {} tokens, and the model takes {} with the answer: with "
                  "max_tokens {} they do not fit, give a shorter prompt",
                  prompt, prompt + there_is, wanted));
}

void ServeJob::MakeRequests(Asker& asker) {
  const ServeQuestion& question = asker.question;
  for (size_t prompt = 0; prompt < question.prompts.size(); ++prompt) {
    const std::vector<int32_t> tokens = TokensOf(question.prompts[prompt], *tokenizer_);
    const int64_t most =
        MostNewTokens(static_cast<int64_t>(tokens.size()), question.max_new_tokens);
    for (int sample = 0; sample < question.samples; ++sample) {
      asker.answers.emplace_back(question, *tokenizer_, prompt, sample, tokens);
      const auto answer = std::prev(asker.answers.end());
      asker.waiting.push_back({answer, answer->Request(most)});
      if (sample == 0) batch_->Check(asker.waiting.back().request);  // the others differ in seeds
    }
  }
}

void ServeJob::Feed() {
  const auto most = static_cast<size_t>(options_.most_requests);
  // Of one asker: no answer is put back once it has begun.
  const size_t share = std::max<size_t>(1, most - std::max<size_t>(1, most / 4));
  while (requests_.size() < most) {
    const auto next = std::ranges::find_if(askers_, [&](const Asker& asker) {
      const bool wants = !asker.waiting.empty() && !asker.gone && !asker.finished &&
                         asker.unsent.size() < kMostUnsentBytes;
      return wants && asker.answers.size() - asker.waiting.size() < share;
    });
    if (next == askers_.end()) return;
    Asker::Waiting turn = std::move(next->waiting.front());
    next->waiting.pop_front();
    requests_[batch_->Add(std::move(turn.request))] = {&*next, turn.answer};
    askers_.splice(askers_.end(), askers_, next);  // behind the others for the next turn
  }
}

void ServeJob::Finish(const engine::GenerationAnswer& made) {
  const auto found = requests_.find(made.request);
  const auto [asker, answer] = found->second;
  requests_.erase(found);
  if (!asker->finished) asker->unsent += answer->Finish(made);
  asker->answers.erase(answer);
  if (asker->answers.empty()) asker->finished = true;
}

void ServeJob::Fail(Asker& asker, const std::string& error) {
  asker.unsent = RefusalLine(error);
  asker.finished = true;
}

void ServeJob::Drop(Asker& asker) {
  std::erase_if(requests_, [&](const auto& each) {
    if (each.second.asker != &asker) return false;
    batch_->Withdraw(each.first);
    return true;
  });
  asker.waiting.clear();
  asker.answers.clear();
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
  Feed();
  for (const engine::GenerationAnswer& made : batch_->Step()) Finish(made);
  const MonoTime now = context_.clock.Mono();
  for (Asker& asker : askers_) {
    if (!asker.finished && !asker.gone) {
      for (ServeAnswer& answer : asker.answers) asker.unsent += answer.Tell();
    }
    if (asker.unsent.empty() && now - asker.told > kSilence) {
      asker.unsent = "{\"text\":\"\"}\n";
    }
    Send(asker);
    // It is not read: what it still has under way fits into this.
    if (asker.unsent.size() > 4 * kMostUnsentBytes) asker.gone = true;
    if (asker.gone || asker.finished) Drop(asker);
  }
  std::erase_if(askers_, [](const Asker& asker) {
    return asker.gone || (asker.finished && asker.unsent.empty());
  });
}

void ServeJob::Drain(int listener) {
  const channel::RankLaunch& file = context_.launch.file;
  const bool alone = file.local_ranks == file.world_size;
  const MonoTime until = context_.clock.Mono() + (alone ? Nanos(0) : kLate);
  while (!askers_.empty() || context_.clock.Mono() < until) {
    Receive(listener);
    Step();
    if (flight_) flight_->SetPhase(channel::FlightPhase::kEnding);
  }
}

channel::ExitCode ServeJob::Run() {
  const channel::RankLaunch& file = context_.launch.file;
  if (auto flight = OpenFlightRecord(file, context_.rank, context_.clock)) {
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
  context_.events.Sync();
  Drain(listener.get());
  unlink(SocketPath().c_str());
  return channel::kExitStopped;
}

}  // namespace sft::rank
