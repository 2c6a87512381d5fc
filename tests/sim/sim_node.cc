#include "tests/sim/sim_node.h"

#include <fmt/format.h>

#include <deque>

#include "common/base/ids.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "server/stored/uploads.h"

namespace sft::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kHeartbeat{5};
// How long either end believes in a silent connection.
constexpr seconds kKeepalive{15};
constexpr seconds kLiveStep{1};
constexpr seconds kRefresh{10};

}  // namespace

// One life of the stream between a worker and a server. Each end may find it ended at another time.
class SimNode::Link : public server::WorkerLink, public std::enable_shared_from_this<Link> {
 public:
  Link(SimNode& node, int64_t server_life)
      : node_(&node), server_life_(server_life), begun_(node.clock_.Mono()) {}

  void Send(const v1::ServerMessage& message) override {
    if (!welcomed_ && !message.has_welcome()) return waiting_.push_back(message);
    if (node_ == nullptr || broken_) return;
    arrives_ = std::max(arrives_, node_->events_.now()) + node_->Delay();
    node_->events_.At(arrives_, [self = shared_from_this(), message] { self->Arrive(message); });
    if (!message.has_welcome()) return;
    welcomed_ = true;
    for (const v1::ServerMessage& held : std::exchange(waiting_, {})) Send(held);
  }
  void Close(const absl::Status&) override { End(); }
  // The worker's end is gone.
  void Leave() { node_ = nullptr; }
  // Nothing passes any more.
  void End() {
    broken_ = true;
    if (node_ != nullptr && node_->link_.get() == this) {
      node_->Later(node_->Delay(), [node = node_, self = shared_from_this()] {
        if (node->link_ == self) node->Break();
      });
    }
  }
  bool broken() const { return broken_; }
  int64_t server_life() const { return server_life_; }

 private:
  // TCP keeps the order: behind one that is held by a cut, all wait.
  void Arrive(const v1::ServerMessage& message) {
    arrived_.push_back(message);
    if (arrived_.size() == 1) Deliver();
  }
  void Deliver() {
    for (; !arrived_.empty(); arrived_.pop_front()) {
      if (node_ == nullptr || node_->link_.get() != this) return;
      if (node_->cut_) {
        // Sent again, for as long as both ends believe in the connection.
        return node_->Later(seconds(1), [self = shared_from_this()] {
          if (!self->broken_) self->Deliver();
        });
      }
      Take(arrived_.front());
    }
  }
  void Take(const v1::ServerMessage& message) {
    if (message.has_welcome()) {
      if (!message.welcome().refused().empty()) return node_->Break();
      node_->agent_->ServerHeard(begun_);
      node_->models_since_ = 0;
      node_->Report();
    } else if (message.has_observed_answer()) {
      node_->TakeAnswer(message.observed_answer().sequence());
    } else if (message.has_desired()) {
      node_->agent_->OnDesired(message.desired());
      node_->StepAgent();
    }
  }

  SimNode* node_;
  const int64_t server_life_;
  const MonoTime begun_;
  Nanos arrives_{0};
  bool welcomed_ = false, broken_ = false;
  std::vector<v1::ServerMessage> waiting_;
  std::deque<v1::ServerMessage> arrived_;
};

SimNode::SimNode(EventQueue& events, Chance& chance, Cluster& cluster, SimServer& server,
                 Options options)
    : events_(events),
      chance_(chance),
      server_(server),
      options_(std::move(options)),
      clock_(events),
      machine_(events, chance, cluster, options_.name, options_.gpus) {
  setup_.node = options_.name;
  setup_.data_dir = options_.dir;
  setup_.shared_dir = options_.shared_dir;
  setup_.has_shared = !options_.shared_dir.empty();
  setup_.model_dirs = {options_.model_dir};
  setup_.roots = {options_.model_dir, options_.files_dir};
  setup_.cpus = 8;
  if (!options_.uploads) setup_.checkpoint_upload_limit = 0;
  setup_.grace_seconds = 5;
  setup_.kernel_log = "/dev/null";  // not this machine's
}

SimNode::~SimNode() { Kill(); }

// For as long as this life of the daemon.
void SimNode::Later(Nanos delay, std::function<void()> action) {
  events_.After(delay, [this, life = life_, action = std::move(action)] {
    if (life == life_ && agent_ != nullptr) action();
  });
}

Nanos SimNode::Delay() {
  return delay_ + chance_.Between(milliseconds(1), milliseconds(chance_.OneIn(50) ? 2000 : 30));
}

void SimNode::Boot() {
  if (agent_ != nullptr) return;
  ++life_;
  ++boots_;
  stager_ = std::make_unique<worker::Stager>(setup_, *this);
  inventory_ = std::make_unique<worker::Inventory>([this] { return machine_.Gpus(); },
                                                   worker::SimulatedGpus{}, 0, clock_);
  agent_ = std::make_unique<worker::Agent>(worker::Agent::Options{.io_threads = false}, setup_,
                                           *stager_, *inventory_, *this, machine_, clock_,
                                           [] { return std::string(); });
  v1::Model model;
  model.set_id("tiny");
  model.set_path(options_.model_dir + "/tiny");
  agent_->SetModels({model});
  if (const absl::Status loaded = agent_->Load(); !loaded.ok()) {
    // A machine whose disk is new and full already: the service manager starts it again.
    if (!absl::IsResourceExhausted(loaded)) std::abort();
    agent_.reset();
    inventory_.reset();
    stager_.reset();
    return events_.After(seconds(2), [this] { Boot(); });
  }
  seen_ = 0;
  step_soon_ = false;
  reported_at_ = arrives_ = events_.now();
  inventory_->SetWaker([this] { Later(milliseconds(100), [this] { inventory_->Refresh(); }); });
  Later(Nanos(0), [this] { StepAgent(); });
  RefreshLater();
  Connect();
}

void SimNode::RefreshLater() {
  Later(kRefresh, [this] {
    inventory_->Refresh();
    RefreshLater();
  });
}

void SimNode::Kill() {
  if (agent_ == nullptr) return;
  ++life_;
  if (link_ != nullptr) {
    // The server hears of it when the connection is reset, or finds it silent.
    link_->Leave();
    if (!cut_) {
      events_.After(Delay(), [this, link = link_] {
        auto* process = server_.process();
        if (process != nullptr && link->server_life() == server_.life()) {
          process->registry.Disconnect(options_.name, link.get());
        }
      });
    }
    link_.reset();
  }
  agent_.reset();
  inventory_.reset();
  stager_.reset();
}

void SimNode::LoseCheckpoints() {
  if (!io::RemoveAll(options_.dir + "/checkpoints").ok()) std::abort();
}

void SimNode::Refit(int gpus) {
  ++machines_;
  machine_.Refit(gpus);
  machine_.disk().Empty();
  if (!io::RemoveAll(options_.dir).ok() || !io::MakeDirs(options_.dir).ok()) std::abort();
}

void SimNode::Reconnect() { cut_ = false; }

v1::Register SimNode::MakeRegister() {
  v1::Register message;
  message.set_node(options_.name);
  message.set_incarnation(fmt::format("life-{}", life_));
  message.set_version(kVersion);
  message.set_protocol(kProtocol);
  message.set_hostname("host-of-" + options_.name);
  message.set_data_dir_id(fmt::format("data-of-{}-{}", options_.name, machines_));
  message.set_address("127.0.0.1");
  message.set_has_shared_folder(!options_.shared_dir.empty());
  for (const v1::Slot& slot : inventory_->Slots()) *message.add_slots() = slot;
  for (const v1::Model& model : agent_->Models()) *message.add_models() = model;
  return message;
}

void SimNode::Connect() {
  if (cut_ || !server_.answers()) {
    return Later(chance_.Between(milliseconds(200), seconds(5)), [this] { Connect(); });
  }
  auto link = std::make_shared<Link>(*this, server_.life());
  unanswered_.clear();
  link_ = link;
  cut_since_ = Nanos(0);
  ToServer(
      [message = MakeRegister()](SimServer::Process& process, const std::shared_ptr<Link>& at) {
        const absl::Status accepted = process.registry.Connect(message, at);
        v1::ServerMessage welcome;
        *welcome.mutable_welcome() = process.registry.MakeWelcome(accepted);
        at->Send(welcome);
      });
  WatchLink();
}

// What the worker's end notices by itself: a server that is gone at once, silence after a while.
void SimNode::WatchLink() {
  Later(seconds(1), [this, link = link_] {
    if (link_ != link || link == nullptr) return;
    const bool silent = cut_ || !server_.answers();
    if (!silent) cut_since_ = Nanos(0);
    if (silent && cut_since_ == Nanos(0)) cut_since_ = events_.now();
    const bool reset = !cut_ && server_.life() != link->server_life();
    const bool gone = !cut_ && server_.process() == nullptr;
    if (reset || gone || (silent && events_.now() - cut_since_ > kKeepalive)) return Break();
    WatchLink();
  });
}

void SimNode::Break() {
  const std::shared_ptr<Link> link = std::exchange(link_, nullptr);
  if (link == nullptr) return;
  link->Leave();
  // The server's end: at once when the way is free, else by its own keepalive.
  events_.After(cut_ ? Nanos(kKeepalive) : Delay(), [this, link] {
    auto* process = server_.process();
    if (process != nullptr && link->server_life() == server_.life()) {
      process->registry.Disconnect(options_.name, link.get());
    }
  });
  Later(chance_.Between(milliseconds(200), seconds(5)), [this] { Connect(); });
}

void SimNode::ToServer(Handle handle) {
  const std::shared_ptr<Link> link = link_;
  if (link == nullptr) return;
  arrives_ = std::max(arrives_, events_.now()) + Delay();
  events_.At(arrives_, [this, link, handle = std::move(handle)] { Deliver(link, handle); });
}

void SimNode::Deliver(const std::shared_ptr<Link>& link, const Handle& handle) {
  // What was on its way when the connection ended is lost.
  if (link != link_ || link->broken() || link->server_life() != server_.life()) return;
  if (!cut_ && server_.answers()) return handle(*server_.process(), link);
  // TCP sends it again, in order, for as long as both ends believe in the connection.
  arrives_ = std::max(arrives_, events_.now()) + seconds(1);
  events_.At(arrives_, [this, link, handle] { Deliver(link, handle); });
}

void SimNode::Report() {
  reported_at_ = events_.now();
  v1::Observed observed = agent_->Observe(models_since_);
  observed.set_sequence(++sequence_);
  unanswered_[sequence_] = clock_.Mono();
  ToServer([this, observed = std::move(observed)](SimServer::Process& process,
                                                  const std::shared_ptr<Link>& link) {
    const absl::Status taken = process.registry.Observe(options_.name, link.get(), observed);
    // A store that is full must not cost the stream: the next report says it all again.
    if (absl::IsAborted(taken) || absl::IsInvalidArgument(taken)) return link->End();
    if (!taken.ok()) return;
    v1::ServerMessage answer;
    answer.mutable_observed_answer()->set_sequence(observed.sequence());
    link->Send(answer);
  });
}

void SimNode::TakeAnswer(int64_t sequence) {
  const auto found = unanswered_.find(sequence);
  if (found == unanswered_.end()) return;
  agent_->ServerHeard(found->second);
  unanswered_.erase(unanswered_.begin(), std::next(found));
}

void SimNode::StepAgent() {
  Nanos next = agent_->Step();
  agent_->StepIo();
  // What the io threads found wakes the control thread.
  const bool woken = agent_->WaitForChange(seen_, Nanos(0));
  if (woken) next = agent_->Step();
  const bool changed = agent_->WaitForChange(seen_, Nanos(0)) || woken;
  if (link_ != nullptr && (changed || events_.now() - reported_at_ >= kHeartbeat)) Report();
  if (step_soon_) return;
  step_soon_ = true;
  Later(std::max<Nanos>(next, kLiveStep), [this] {
    step_soon_ = false;
    StepAgent();
  });
}

SimServer::Process* SimNode::Reach() {
  return cut_ || !server_.answers() ? nullptr : server_.process();
}

// The call was done; its answer may be lost.
template <typename Result>
Result SimNode::Answer(Result result) {
  if (lose_answers_ > 0 && chance_.OneIn(lose_answers_)) {
    return Result(DeadlineExceeded("the answer was lost"));
  }
  return result;
}

absl::StatusOr<int64_t> SimNode::AppendLog(const v1::AppendLogRequest& request) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  const absl::StatusOr<v1::AppendLogResponse> done = process->ingest.AppendLog(request);
  if (!done.ok()) return done.status();
  return Answer(absl::StatusOr<int64_t>(done->offset()));
}

absl::StatusOr<int64_t> SimNode::AppendEvents(const v1::AppendEventsRequest& request) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  const absl::StatusOr<v1::AppendEventsResponse> done = process->ingest.AppendEvents(request);
  if (!done.ok()) return done.status();
  return Answer(absl::StatusOr<int64_t>(done->offset()));
}

absl::Status SimNode::UploadArtifact(const worker::BlobFile& file, const worker::StopCheck&) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  SFT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(file.path));
  const auto purpose =
      file.is_checkpoint ? v1::UploadBlobRequest::CHECKPOINT : v1::UploadBlobRequest::ARTIFACT;
  const server::Sender sender{.owner = "local", .node = file.node, .attempt_uid = file.attempt_uid};
  SFT_RETURN_IF_ERROR(server::CheckDelivery(*process->store, file.node, file.attempt_uid));
  SFT_ASSIGN_OR_RETURN(
      const server::BlobStore::Stat stat,
      server::FindUpload(*(file.is_checkpoint ? process->checkpoint_blobs : process->blobs),
                         *process->store, sender, purpose, file.sha256));
  if (!stat.complete) {
    server::UploadSession session(*process->blobs, *process->checkpoint_blobs, *process->store,
                                  server_.clock(), sender);
    v1::UploadBlobRequest request;
    request.set_sha256(file.sha256);
    request.set_size(file.size);
    request.set_purpose(purpose);
    request.set_offset(stat.received);
    request.set_data(bytes.substr(static_cast<size_t>(stat.received)));
    SFT_RETURN_IF_ERROR(session.Take(request));
    SFT_RETURN_IF_ERROR(session.Finish().status());
  }
  return Answer(absl::OkStatus());
}

absl::Status SimNode::Download(const std::string& sha256, int64_t offset,
                               const std::function<absl::Status(std::string_view)>& sink,
                               const worker::StopCheck&) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  absl::Status taken = absl::OkStatus();
  const absl::Status sent =
      process->artifacts.DownloadBlob(sha256, offset, [&](const v1::DownloadChunk& chunk) {
        taken = sink(chunk.data());
        return taken.ok();
      });
  return taken.ok() ? sent : taken;
}

absl::Status SimNode::CommitCheckpoint(const v1::CommitCheckpointRequest& request) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  return Answer(process->checkpoints.Commit(request).status());
}

absl::Status SimNode::CommitArtifact(const v1::CommitArtifactRequest& request) {
  SimServer::Process* process = Reach();
  if (process == nullptr) return Unavailable("no server");
  const absl::StatusOr<v1::Artifact> done = process->artifacts.Commit(request);
  return Answer(done.status());
}

absl::Status SimNode::SendFile(const v1::FetchFile&, const std::string&, const std::string&) {
  return absl::OkStatus();
}

}  // namespace sft::sim
