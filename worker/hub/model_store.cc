#include "worker/hub/model_store.h"

#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "worker/hub/hub_cache.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kWaitInterval{100};
constexpr seconds kTellInterval{1};
// Longer than a hub asks to wait at once: who asks sooner waits longer.
constexpr std::chrono::minutes kPatience{15};
// Failed downloads that are remembered for operators.
constexpr size_t kMaxFailed = 32;
// In a model's folder: this worker made it, and when a job last used it.
constexpr char kOwnMark[] = "/.sft-downloaded";
constexpr std::string_view kFolderPrefix = "models--";
// A model's folder while it is being removed.
constexpr std::string_view kRemovedPrefix = ".removing-";

std::string TextOf(const hub::ModelName& name, const PullProgress& progress, double rate) {
  const std::string what = fmt::format("downloading model {}", name.id);
  if (progress.bytes_total <= 0) return what;
  std::string text =
      fmt::format("{}: {} % of {}", what, progress.bytes_done * 100 / progress.bytes_total,
                  BytesText(progress.bytes_total));
  if (rate <= 0) return text;
  const double left = static_cast<double>(progress.bytes_total - progress.bytes_done) / rate;
  return fmt::format("{}, {}/s, {} left", text, BytesText(static_cast<int64_t>(rate)),
                     left < 120    ? fmt::format("{:.0f} s", left)
                     : left < 7200 ? fmt::format("{:.0f} min", left / 60)
                                   : fmt::format("{:.1f} h", left / 3600));
}

int64_t LastUseOf(const std::string& folder) {
  struct stat info {};
  if (stat((folder + kOwnMark).c_str(), &info) != 0) return 0;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000 + info.st_mtim.tv_nsec / 1000;
}

// Bytes of all blobs; what snapshots link to is not counted again.
int64_t CacheBytes(const std::string& dir) {
  int64_t bytes = 0;
  for (const std::string& name : io::ListDir(dir).value_or(std::vector<std::string>())) {
    if (name.starts_with(kFolderPrefix)) bytes += io::TreeBytes(dir + "/" + name + "/blobs");
  }
  return bytes;
}

// True for a folder that this worker made, or makes now: another program's stays that program's.
// An empty one is what is left when a worker ends before it has written the mark.
bool IsOwnFolder(const std::string& folder) {
  if (!io::Exists(folder) || io::Exists(folder + kOwnMark)) return true;
  const auto names = io::ListDir(folder, 1);
  return names.ok() && names->empty();
}

// Before the first byte comes: whatever ends the download, what it leaves can be removed.
absl::Status MarkOwn(const std::string& folder) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(folder));
  const std::string mark = folder + kOwnMark;
  const io::UniqueFd fd(open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot write {}", mark), errno);
  return io::SyncDir(folder);
}

// After a download that did not begin, such as that of a model that the hub does not have.
void DropIfEmpty(const std::string& folder) {
  if (io::Exists(folder + "/blobs")) return;
  (void)unlink((folder + kOwnMark).c_str());
  (void)rmdir(folder.c_str());  // keeps a folder that another program fills
}

// What a worker that ended in a removal has left.
void RemoveLeftovers(const std::string& cache_dir) {
  for (const std::string& name : io::ListDir(cache_dir).value_or(std::vector<std::string>())) {
    // What stays is tried again at the next start.
    if (name.starts_with(kRemovedPrefix)) (void)io::RemoveAll(cache_dir + "/" + name);
  }
}

std::string IdOfFolder(std::string name) {
  name.erase(0, kFolderPrefix.size());
  if (const size_t at = name.find("--"); at != name.npos) name.replace(at, 2, "/");
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelStore>> ModelStore::Open(HubSetup setup, Reserve reserve,
                                                             Clock& clock) {
  std::unique_ptr<hub::HttpClient> http;
  if (!setup.cache_dir.empty() && !setup.offline) {
    const hub::HttpOptions options = hub::HttpOptionsOf(setup.ca_file, reserve.environment);
    SFT_ASSIGN_OR_RETURN(http, hub::MakeHttpClient(options));
  }
  return Open(std::move(setup), std::move(reserve), std::move(http), clock);
}

absl::StatusOr<std::unique_ptr<ModelStore>> ModelStore::Open(HubSetup setup, Reserve reserve,
                                                             std::unique_ptr<hub::HttpClient> http,
                                                             Clock& clock) {
  if (!setup.cache_dir.empty() && setup.makes_room) RemoveLeftovers(setup.cache_dir);
  std::unique_ptr<ModelStore> store(new ModelStore(std::move(setup), std::move(reserve)));
  store->http_ = std::move(http);
  store->clock_ = &clock;
  return store;
}

void ModelStore::SetInUse(InUse in_use) {
  const MutexLock lock(mutex_);
  in_use_ = std::move(in_use);
}

void ModelStore::SetPublish(std::function<absl::Status(const std::string&)> publish) {
  const MutexLock lock(mutex_);
  publish_ = std::move(publish);
}

void ModelStore::SetPeers(ModelPeers* peers) {
  const MutexLock lock(mutex_);
  peers_ = peers;
}

void ModelStore::SetOnChange(std::function<void()> on_change) {
  const MutexLock lock(mutex_);
  on_change_ = std::move(on_change);
}

void ModelStore::TellChange() const {
  std::function<void()> on_change;
  {
    const MutexLock lock(mutex_);
    on_change = on_change_;
  }
  if (on_change) on_change();
}

bool ModelStore::Claim(const hub::ModelName& name) {
  const MutexLock lock(mutex_);
  // A download of another revision shares most of the blobs.
  if (IsRunning(name.id)) {
    changed_.WaitFor(mutex_, kWaitInterval);
    return false;
  }
  Running& running = running_[name.Text()];
  running.download.name = name;
  running.download.text = TextOf(name, {}, 0);
  running.began = running.told = clock_->Mono();
  failed_.erase(name.Text());
  return true;
}

bool ModelStore::IsRunning(const std::string& id) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const auto& each) { return each.second.download.name.id == id; });
}

std::string ModelStore::TextOfOther(const hub::ModelName& name) const {
  const MutexLock lock(mutex_);
  for (const auto& [key, running] : running_) {
    if (running.download.name.id == name.id) return running.download.text;
  }
  return TextOf(name, {}, 0);
}

absl::StatusOr<PulledModel> ModelStore::Fetch(
    const hub::ModelName& name, const std::string& token, const hub::StopCheck& stop,
    const std::function<void(const std::string&)>& on_text, bool verify) {
  if (!Downloads()) {
    return FailedPrecondition(
        fmt::format("this node does not have model {} and downloads none: {}", name.Text(),
                    setup_.offline ? "HF_HUB_OFFLINE is set for its worker"
                                   : "its worker was started without --model-cache"));
  }
  const std::string key = name.Text();
  const MonoTime begin = clock_->Mono();
  while (!Claim(name)) {
    if (stop && stop()) return Aborted("the wait for another job's download was stopped");
    if (on_text) on_text(TextOfOther(name));
  }
  absl::StatusOr<PulledModel> pulled = Pull(name, token, stop, on_text, verify);
  {
    const MutexLock lock(mutex_);
    Download ended = running_[key].download;
    ended.text = "not downloaded";
    running_.erase(key);
    changed_.NotifyAll();
    if (!pulled.ok() && !absl::IsAborted(pulled.status()))
      NoteFailure(std::move(ended), pulled.status());
  }
  TellChange();
  if (pulled.ok()) pulled->took = clock_->Mono() - begin;
  return pulled;
}

void ModelStore::NoteFailure(Download download, const absl::Status& why) {
  download.problem = Message(why);
  if (failed_.size() >= kMaxFailed) failed_.erase(failed_.begin());
  failed_[download.name.Text()] = std::move(download);
}

absl::StatusOr<PulledModel> ModelStore::Pull(const hub::ModelName& name, const std::string& token,
                                             const hub::StopCheck& stop,
                                             const std::function<void(const std::string&)>& on_text,
                                             bool verify) {
  const std::string key = name.Text();
  const std::string folder = setup_.cache_dir + "/" + hub::CacheFolderOf(name.id);
  const bool own = IsOwnFolder(folder);
  if (own) SFT_RETURN_IF_ERROR(MarkOwn(folder));
  if (on_text) on_text(TextOf(name, {}, 0));
  PullWatch watch;
  watch.stop = stop;
  watch.verify = verify;
  {
    const MutexLock lock(mutex_);
    watch.peers = peers_;
  }
  watch.on_progress = [&](const PullProgress& progress) { Note(key, progress, on_text); };
  watch.make_room = [&](int64_t bytes) { return MakeRoom(key, name.id, bytes); };
  const auto on_wait = [&](const std::string& why) {
    const std::string text = fmt::format("downloading model {}: {}", name.id, why);
    {
      const MutexLock lock(mutex_);
      running_[key].download.text = text;
    }
    if (on_text) on_text(text);
  };
  const hub::Hub hub({setup_.endpoint, token.empty() ? setup_.token : token, kPatience, on_wait},
                     *http_, *clock_);
  const absl::Cleanup mark = [&] {
    if (!own) return;
    MarkUsed(name.id);
    DropIfEmpty(folder);
  };
  SFT_ASSIGN_OR_RETURN(PulledModel pulled, PullModel(hub, name, setup_.cache_dir, watch, *clock_));
  std::function<absl::Status(const std::string&)> publish;
  {
    const MutexLock lock(mutex_);
    publish = publish_;
  }
  if (publish && own) SFT_RETURN_IF_ERROR(publish(folder));
  return pulled;
}

void ModelStore::Note(const std::string& key, const PullProgress& progress,
                      const std::function<void(const std::string&)>& on_text) {
  std::string text;
  {
    const MutexLock lock(mutex_);
    Running& running = running_[key];
    Download& download = running.download;
    const MonoTime now = clock_->Mono();
    download.progress = progress;
    running.needed = std::max<int64_t>(0, progress.bytes_total - progress.bytes_done);
    if (now - running.told < kTellInterval) return;
    // What was found on the disk counts as done at once and says nothing of the network.
    if (running.bytes_at_begin < 0) {
      running.bytes_at_begin = progress.bytes_done;
      running.began = now;
    }
    const double took = SecondsOf(now - running.began);
    if (took > 0) {
      const auto came = static_cast<double>(progress.bytes_done - running.bytes_at_begin);
      download.bytes_per_second = std::max(0.0, came / took);
    }
    running.told = now;
    download.text = text = TextOf(download.name, progress, download.bytes_per_second);
  }
  if (on_text) on_text(text);
}

std::vector<std::string> ModelStore::Oldest() const {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name :
       io::ListDir(setup_.cache_dir).value_or(std::vector<std::string>())) {
    const std::string folder = setup_.cache_dir + "/" + name;
    if (!name.starts_with(kFolderPrefix) || !io::Exists(folder + kOwnMark)) continue;
    found.emplace_back(LastUseOf(folder), IdOfFolder(name));
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> ids;
  for (auto& [time, id] : found) ids.push_back(std::move(id));
  return ids;
}

std::set<std::string> ModelStore::UsedNow() const {
  InUse in_use;
  {
    const MutexLock lock(mutex_);
    in_use = in_use_;
  }
  return in_use ? in_use() : std::set<std::string>();
}

absl::Status ModelStore::MakeRoom(const std::string& key, const std::string& id, int64_t bytes) {
  const MutexLock making(room_);
  int64_t promised = 0;  // to other downloads
  // Asked without a lock held: it has locks of its own.
  std::set<std::string> kept = UsedNow();
  kept.insert(id);
  {
    const MutexLock lock(mutex_);
    for (const auto& [other, running] : running_) {
      kept.insert(running.download.name.id);
      if (other != key) promised += running.needed;
    }
    running_[key].needed = bytes;
  }
  const auto lacking = [&]() -> absl::StatusOr<int64_t> {
    SFT_ASSIGN_OR_RETURN(const int64_t free, io::FreeBytes(setup_.cache_dir));
    int64_t lacks = bytes + promised + reserve_.keep_free() - free;
    if (setup_.cache_limit > 0) {
      lacks = std::max(lacks, CacheBytes(setup_.cache_dir) + bytes + promised - setup_.cache_limit);
    }
    return lacks;
  };
  SFT_ASSIGN_OR_RETURN(int64_t lacks, lacking());
  for (const std::string& each : Oldest()) {
    if (lacks <= 0 || !setup_.makes_room) break;
    if (kept.contains(each)) continue;
    const absl::Status removed = RemoveFolder(each);
    if (absl::IsFailedPrecondition(removed)) continue;
    SFT_RETURN_IF_ERROR(removed);
    SFT_ASSIGN_OR_RETURN(lacks, lacking());
  }
  if (lacks <= 0) return absl::OkStatus();
  return ResourceExhausted(fmt::format(
      "model {} takes another {} in {}, which is {} more than {}; {}: "
      "`sftctl models rm` removes others, --model-cache-limit and the disk decide",
      id, BytesText(bytes), setup_.cache_dir, BytesText(lacks),
      setup_.cache_limit > 0
          ? fmt::format("the disk or the limit of {} allows", BytesText(setup_.cache_limit))
          : "the disk has to spare",
      setup_.makes_room ? "models that jobs here use stay"
                        : "no other model is removed for it, since jobs may use it"));
}

void ModelStore::MarkUsed(const std::string& id) const {
  if (setup_.cache_dir.empty()) return;
  const std::string mark = setup_.cache_dir + "/" + hub::CacheFolderOf(id) + kOwnMark;
  // At worst the model counts as unused for longer than it is.
  (void)utimensat(AT_FDCWD, mark.c_str(), nullptr, 0);
}

absl::Status ModelStore::Remove(const std::string& id) {
  const absl::Status removed = TryRemove(id);
  // Where it is not, there is nothing to do: nodes are told all together.
  if (!removed.ok() && !absl::IsNotFound(removed)) {
    const MutexLock lock(mutex_);
    NoteFailure({.name = {id, ""}, .text = "not removed"}, removed);
  }
  TellChange();
  return removed;
}

absl::Status ModelStore::TryRemove(const std::string& id) {
  const MutexLock making(room_);
  if (UsedNow().contains(id)) {
    return FailedPrecondition(fmt::format("a job of this node uses model {}", id));
  }
  {
    const MutexLock lock(mutex_);
    std::erase_if(failed_, [&](const auto& each) { return each.second.name.id == id; });
    // Its folder may be there already.
    if (IsRunning(id)) {
      return FailedPrecondition(fmt::format("model {} is on its way to this node", id));
    }
  }
  const std::string mark = setup_.cache_dir + "/" + hub::CacheFolderOf(id) + kOwnMark;
  if (setup_.cache_dir.empty() || !io::Exists(mark)) {
    return NotFound(fmt::format("this node has not downloaded a model {}", id));
  }
  return RemoveFolder(id);
}

absl::Status ModelStore::RemoveFolder(const std::string& id) {
  const std::string name = hub::CacheFolderOf(id);
  const std::string folder = setup_.cache_dir + "/" + name;
  const std::string aside = fmt::format("{}/{}{}", setup_.cache_dir, kRemovedPrefix, name);
  SFT_RETURN_IF_ERROR(io::RemoveAll(aside));
  {
    const MutexLock lock(mutex_);
    if (IsRunning(id)) {
      return FailedPrecondition(fmt::format("model {} is on its way to this node", id));
    }
    SFT_RETURN_IF_ERROR(io::RenameDurably(folder, aside));
  }
  // A job that found the folder was known as its user before: nobody is overlooked now.
  if (UsedNow().contains(id)) {
    // Where that job came a moment later and downloads the model again, the old folder goes.
    const absl::Status back = io::RenameDurably(aside, folder);
    if (back.ok()) return FailedPrecondition(fmt::format("a job of this node uses model {}", id));
    if (!io::Exists(folder)) return back;
  }
  return io::RemoveAll(aside);
}

std::vector<ModelStore::Download> ModelStore::List() const {
  std::vector<Download> list;
  const MutexLock lock(mutex_);
  for (const auto& [key, running] : running_) list.push_back(running.download);
  for (const auto& [key, download] : failed_) list.push_back(download);
  return list;
}

}  // namespace sft::worker
