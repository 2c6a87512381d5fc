#include "server/app/standby.h"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/io/file.h"
#include "common/obs/log.h"
#include "common/obs/service_manager.h"
#include "server/database/data_dir_lock.h"
#include "server/http/exposition.h"
#include "server/http/http_server.h"
#include "server/http/page_makers.h"
#include "server/http/process_figures.h"

namespace sft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How often a round that succeeds is logged.
constexpr seconds kLogEvery{60};
// What a last copy may take when the standby is told to take over.
constexpr seconds kLastRound{10};
constexpr seconds kRetireEvery{5};
// That a standby may take to become the server.
constexpr seconds kTakeOverPatience{120};

double UnixSeconds(WallTime time) { return static_cast<double>(UnixMicros(time)) / 1e6; }

// The rounds, in a thread.
class Rounds {
 public:
  Rounds(StandbyCopy& copy, RemoteSource& source, std::string of, Nanos every, Clock& clock)
      : copy_(copy), source_(source), of_(std::move(of)), every_(every), clock_(clock) {
    figures_.begun = copy.begun();
    thread_ = std::thread([this] {
      obs::NameThread("standby");
      Loop();
    });
  }
  ~Rounds() { Stop(); }

  StandbyFigures figures() const SFT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return figures_;
  }
  Nanos every() const { return every_; }
  WallTime now() const { return clock_.Wall(); }

  // One more round, unless the last one failed: what the server had acknowledged by now is then in
  // the copy. Returns when it has ended, or has taken too long.
  void MakeLast() SFT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!figures_.error.empty()) return;
    const int64_t wanted = figures_.rounds + figures_.failures + (under_way_ ? 2 : 1);
    soon_ = true;
    wake_.NotifyAll();
    const MonoTime deadline = clock_.Mono() + kLastRound;
    while (figures_.rounds + figures_.failures < wanted && clock_.Mono() < deadline) {
      wake_.WaitFor(mutex_, milliseconds(100));
    }
  }

  // Breaks a round off.
  void Stop() SFT_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    source_.Cancel();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop() SFT_EXCLUDES(mutex_) {
    while (true) {
      const MonoTime begin = clock_.Mono();
      {
        const MutexLock lock(mutex_);
        if (stopping_) return;
        under_way_ = true;
        soon_ = false;
      }
      const absl::StatusOr<StandbyCopy::Round> round = copy_.Ship();
      const MutexLock lock(mutex_);
      under_way_ = false;
      if (!stopping_) Note(round);
      wake_.NotifyAll();
      while (!stopping_ && !soon_ && clock_.Mono() - begin < every_) {
        wake_.WaitFor(mutex_, std::min<Nanos>(every_ - (clock_.Mono() - begin), seconds(1)));
      }
    }
  }

  void Note(const absl::StatusOr<StandbyCopy::Round>& round) SFT_REQUIRES(mutex_) {
    if (!round.ok()) {
      ++figures_.failures;
      const std::string why(Message(round.status()));
      if (why != figures_.error) {
        spdlog::error("{} could not be copied: {}; {}", of_, why, Lag());
      }
      figures_.error = why;
      return;
    }
    ++figures_.rounds;
    const bool told = figures_.error.empty() && clock_.Mono() - logged_ < kLogEvery;
    figures_.error.clear();
    figures_.begun = round->begun;
    figures_.took = round->took;
    if (told) return;
    logged_ = clock_.Mono();
    spdlog::info(
        "{} is copied: database {}, {} files, {} came, in {:.2f} s; if it is lost, at most what it "
        "has acknowledged in the last {:.1f} s is lost",
        of_, BytesText(round->database_bytes), round->files, BytesText(round->bytes),
        SecondsOf(round->took), SecondsOf(LossBound(figures_, every_)));
  }

  std::string Lag() const SFT_REQUIRES(mutex_) {
    if (!figures_.begun) return "there is no copy of it yet";
    return fmt::format(
        "the last copy was begun {:.0f} s ago: if the server is lost, what it has acknowledged "
        "since is lost",
        SecondsOf(clock_.Wall() - *figures_.begun));
  }

  StandbyCopy& copy_;
  RemoteSource& source_;
  const std::string of_;
  const Nanos every_;
  Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  bool soon_ SFT_GUARDED_BY(mutex_) = false;
  bool under_way_ SFT_GUARDED_BY(mutex_) = false;
  MonoTime logged_ SFT_GUARDED_BY(mutex_){MonoTime() - kLogEvery};
  StandbyFigures figures_ SFT_GUARDED_BY(mutex_);
  std::thread thread_;
};

// /metrics and /healthz of a standby.
class StandbyFront final : private HttpHandler {
 public:
  static absl::StatusOr<std::unique_ptr<StandbyFront>> Start(const rpc::Endpoint& endpoint,
                                                             const Rounds& rounds) {
    std::unique_ptr<StandbyFront> front(new StandbyFront(rounds));
    SFT_ASSIGN_OR_RETURN(front->server_, HttpServer::Start(endpoint, *front));
    return front;
  }

 private:
  explicit StandbyFront(const Rounds& rounds)
      : pages_({{"/healthz", [&rounds] { return Health(rounds); }},
                {"/metrics", [&rounds] {
                   return HttpResponse{
                       200, "text/plain; version=0.0.4; charset=utf-8",
                       StandbyMetrics(rounds.figures(), rounds.every(), rounds.now())};
                 }}}) {}

  void Handle(std::shared_ptr<HttpStream> stream) override {
    const HttpRequest& request = stream->request();
    if (request.method == "GET" && pages_.Has(request.path)) {
      return pages_.Answer(std::move(stream));
    }
    HttpResponse none;
    none.status = 404;
    none.body = "a standby has /metrics and /healthz\n";
    stream->Respond(none);
  }

  static HttpResponse Health(const Rounds& rounds) {
    const StandbyFigures figures = rounds.figures();
    HttpResponse page;
    const bool late =
        !figures.begun || rounds.now() - *figures.begun > 3 * LossBound(figures, rounds.every());
    page.status = late ? 503 : 200;
    page.body = !late                   ? "standby\n"
                : figures.error.empty() ? "the first copy is under way\n"
                                        : figures.error + "\n";
    return page;
  }

  PageMakers pages_;
  std::unique_ptr<HttpServer> server_;
};

// The next of the signals that a standby lives by; 0 when none has come for a second.
int NextSignal() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  const timespec time{1, 0};
  return std::max(0, sigtimedwait(&set, nullptr, &time));
}

absl::StatusOr<std::unique_ptr<StandbyFront>> StartFront(const Options& options,
                                                         const Rounds& rounds) {
  if (options.http == "off") return nullptr;
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint listen,
                       rpc::ParseEndpoint(options.listen, /*allow_port_zero=*/true));
  SFT_ASSIGN_OR_RETURN(rpc::Endpoint endpoint, HttpEndpoint(listen, options.http));
  if (!rpc::IsLoopback(endpoint.host)) endpoint.host = "127.0.0.1";
  return StandbyFront::Start(endpoint, rounds);
}

}  // namespace

Nanos LossBound(const StandbyFigures& figures, Nanos every) {
  return std::max(every, figures.took) + figures.took;
}

std::string StandbyMetrics(const StandbyFigures& figures, Nanos every, WallTime now) {
  Exposition page;
  if (figures.begun) {
    page.Metric("sft_standby_copy_timestamp_seconds", "gauge",
                "When the last whole copy was begun, Unix time: what the server had acknowledged "
                "before is in it.");
    page.Sample({}, UnixSeconds(*figures.begun));
    page.Metric("sft_standby_lag_seconds", "gauge",
                "Time since then: what the server acknowledged in it is lost if it is lost now.");
    page.Sample({}, SecondsOf(now - *figures.begun));
  }
  page.Metric("sft_standby_loss_bound_seconds", "gauge",
              "The most that the lag becomes while rounds succeed.");
  page.Sample({}, SecondsOf(LossBound(figures, every)));
  page.Metric("sft_standby_round_seconds", "gauge", "What the last round took.");
  page.Sample({}, SecondsOf(figures.took));
  page.Metric("sft_standby_rounds_total", "counter", "Rounds, by what became of them.");
  page.Sample({{"result", "copied"}}, static_cast<double>(figures.rounds));
  page.Sample({{"result", "failed"}}, static_cast<double>(figures.failures));
  AddProcess(page);
  return page.text();
}

absl::StatusOr<bool> RunStandby(const Options& options, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(const DataDirLock lock, DataDirLock::Acquire(options.data_dir));
  if (!IsStandby(options.data_dir) && !TookOverFrom(options.data_dir).empty()) return true;
  SFT_ASSIGN_OR_RETURN(const rpc::Security security,
                       SecurityOfStandby(options.standby_of, options.data_dir, options.token_file));
  RemoteSource source(rpc::MakeChannel(options.standby_of, security));
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<StandbyCopy> copy,
                       StandbyCopy::Open(options.data_dir, options.standby_of, source, clock));
  int signal = 0;
  {
    Rounds rounds(*copy, source, options.standby_of, *ParseDuration(options.every), clock);
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<StandbyFront> front, StartFront(options, rounds));
    spdlog::info(
        "standby of {}: copied every {}; `sft-server takeover --data-dir {}` makes it the "
        "server",
        options.standby_of, options.every, options.data_dir);
    obs::TellServiceManager("READY=1");
    while (signal == 0) {
      obs::TellServiceManager("WATCHDOG=1");
      signal = NextSignal();
    }
    if (signal == SIGUSR1) rounds.MakeLast();
    rounds.Stop();
  }
  if (signal != SIGUSR1) return false;
  SFT_ASSIGN_OR_RETURN(const std::string told, TakeOverDataDir(options.data_dir, clock, 0));
  spdlog::warn("{}", told.substr(0, told.find_last_not_of('\n') + 1));
  return true;
}

absl::StatusOr<std::string> TakeOver(const Options& options, Clock& clock) {
  const std::string& dir = options.data_dir;
  if (!io::IsDirectory(dir)) return NotFound(fmt::format("{} is not there", dir));
  const bool standby = IsStandby(dir);
  {
    const absl::StatusOr<DataDirLock> lock = DataDirLock::Acquire(dir);
    if (lock.ok()) return TakeOverDataDir(dir, clock, options.above);
    if (!standby) return lock.status();
  }
  const absl::StatusOr<std::string> text = io::ReadFile(dir + "/server.lock", 64);
  const int pid = text.ok() ? std::atoi(text->c_str()) : 0;
  if (pid <= 1 || ::kill(pid, SIGUSR1) != 0) {
    return ErrnoStatus(fmt::format("cannot signal the standby of {}, pid {}", dir, pid), errno);
  }
  const MonoTime deadline = clock.Mono() + kTakeOverPatience;
  while (IsStandby(dir)) {
    if (::kill(pid, 0) != 0) return Internal("the standby has ended: its log says why");
    if (clock.Mono() > deadline) {
      return DeadlineExceeded(
          fmt::format("the standby, pid {}, has not taken over yet: see its log", pid));
    }
    clock.Sleep(milliseconds(50));
  }
  return fmt::format("the standby, pid {}, has taken over from {}: its log says what is lost\n",
                     pid, TookOverFrom(dir));
}

Successor::Successor(const Options& options, int64_t generation, const std::string& address) {
  of_ = options.standby_of;
  if (of_.empty() || TookOverFrom(options.data_dir) != of_) return;
  const absl::StatusOr<rpc::Security> security =
      SecurityOfStandby(of_, options.data_dir, options.token_file);
  if (!security.ok()) {
    spdlog::warn("{} is not told that it was replaced: {}", of_, Message(security.status()));
    return;
  }
  source_ = std::make_unique<RemoteSource>(rpc::MakeChannel(of_, *security));
  thread_ = std::thread([this, generation, address] {
    obs::NameThread("successor");
    Loop(generation, address);
  });
}

void Successor::Loop(int64_t generation, const std::string& address) {
  bool told = false;
  while (true) {
    const absl::Status status = source_->Retire(generation, address);
    if (status.ok() && !told) spdlog::warn("{} was told that this server has its place", of_);
    told = status.ok();
    const MutexLock lock(mutex_);
    if (!stopping_) stopped_.WaitFor(mutex_, kRetireEvery);
    if (stopping_) return;
  }
}

Successor::~Successor() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopped_.NotifyAll();
  if (source_ != nullptr) source_->Cancel();
  if (thread_.joinable()) thread_.join();
}

}  // namespace sft::server
