#include "worker/hub/blob_download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "worker/hub/git_hash.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kChunk = 1 << 20;
constexpr milliseconds kLockInterval{200};
// Files that are not LFS are small, and hashed at once.
constexpr int64_t kMaxGitFile = 256 << 20;
// Tries in a row that bring nothing new, until the download is given up.
constexpr int kMaxIdleTries = 6;
// How often a file may arrive with other bytes.
constexpr int kMaxWrong = 2;
constexpr seconds kLongestPause{15};

// Holds huggingface_hub's lock of a blob: its clients and we do not write the same one at once.
class BlobLock {
 public:
  static absl::StatusOr<BlobLock> Take(const std::string& path, const hub::StopCheck& stop,
                                       Clock& clock) {
    BlobLock lock;
    lock.fd_ = io::UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!lock.fd_.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
    while (flock(lock.fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      // Some network file systems have no locks; the blob's own name keeps writers apart then.
      if (errno != EWOULDBLOCK && errno != EINTR) break;
      if (stop && stop()) return Aborted("the wait for another program's download was stopped");
      clock.Sleep(kLockInterval);
    }
    return lock;
  }

 private:
  io::UniqueFd fd_;
};

// The file that grows, and the hash of what is in it.
class Part {
 public:
  Part(std::string path, const hub::HubFile& file, const BlobWatch& watch)
      : path_(std::move(path)), file_(file), watch_(watch) {}

  // Goes on with what is there, or begins.
  absl::Status Open() {
    fd_ = io::UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd_.valid()) return ErrnoStatus(fmt::format("cannot write {}", path_), errno);
    SFT_ASSIGN_OR_RETURN(const int64_t there, io::FileSize(fd_.get(), path_));
    if (there > file_.size) return Restart();
    std::string buffer(kChunk, '\0');
    while (size_ < there) {
      if (watch_.stop && watch_.stop()) return Aborted("stopped");
      SFT_ASSIGN_OR_RETURN(const size_t count,
                           io::ReadAt(fd_.get(), size_, buffer.data(), buffer.size(), path_));
      if (count == 0) break;
      Count({buffer.data(), count});
    }
    return Seek();
  }
  absl::Status Append(std::string_view bytes) {
    SFT_RETURN_IF_ERROR(io::WriteAll(fd_.get(), bytes, path_));
    Count(bytes);
    return absl::OkStatus();
  }
  absl::Status Restart() {
    if (ftruncate(fd_.get(), 0) != 0) {
      return ErrnoStatus(fmt::format("cannot empty {}", path_), errno);
    }
    watch_.on_bytes(-size_);
    size_ = 0;
    sha256_ = std::make_unique<io::Sha256>();
    return Seek();
  }
  int64_t size() const { return size_; }
  // Of a complete file: that its bytes are those that the hub means.
  absl::StatusOr<bool> IsRight() {
    if (!file_.lfs_sha256.empty()) {
      const bool right = sha256_->FinishHex() == file_.lfs_sha256;
      sha256_ = std::make_unique<io::Sha256>();
      return right;
    }
    SFT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(path_, kMaxGitFile));
    return GitBlobId(bytes) == file_.blob_id;
  }
  absl::Status Keep(const std::string& path) {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(fmt::format("cannot write {}", path_), errno);
    SFT_RETURN_IF_ERROR(fd_.Close());
    return io::RenameDurably(path_, path);
  }

 private:
  void Count(std::string_view bytes) {
    if (!file_.lfs_sha256.empty()) sha256_->Update(bytes);
    size_ += static_cast<int64_t>(bytes.size());
    watch_.on_bytes(static_cast<int64_t>(bytes.size()));
  }
  absl::Status Seek() {
    if (lseek(fd_.get(), size_, SEEK_SET) == size_) return absl::OkStatus();
    return ErrnoStatus(fmt::format("cannot write {}", path_), errno);
  }

  const std::string path_;
  const hub::HubFile& file_;
  const BlobWatch& watch_;
  io::UniqueFd fd_;
  int64_t size_ = 0;
  std::unique_ptr<io::Sha256> sha256_ = std::make_unique<io::Sha256>();
};

// Whether a blob of the right size is still what it is called. Small files are always read, the
// others where something is wrong with the model.
absl::StatusOr<bool> HasItsBytes(const std::string& path, const hub::HubFile& file,
                                 const BlobWatch& watch) {
  if (file.lfs_sha256.empty()) {
    const absl::StatusOr<std::string> bytes = io::ReadFile(path, kMaxGitFile);
    return bytes.ok() && GitBlobId(*bytes) == file.blob_id;
  }
  if (!watch.verify) return true;
  const absl::StatusOr<io::FileHash> hash = io::HashFile(path, watch.stop);
  if (absl::IsAborted(hash.status())) return hash.status();
  return hash.ok() && hash->sha256 == file.lfs_sha256;
}

// A folder in a file's place is no work of ours, and stays.
absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(fmt::format("cannot remove {}", path), errno);
}

// Whether an answer to a Range request begins where it was asked to.
bool BeginsAt(const hub::HttpResponse& response, int64_t offset) {
  return response.Header("content-range").starts_with(fmt::format("bytes {}-", offset));
}

// One connection's worth: OK when the body ended, however much of the file there is then.
absl::Status Receive(const hub::HttpResponse& response, const hub::HubFile& file, Part& part,
                     const BlobWatch& watch) {
  // The file here is longer than theirs or of another version.
  if (response.status == 416) return part.Restart();
  // Whoever knows nothing of ranges sends all of it.
  if (part.size() > 0 && (response.status == 200 || !BeginsAt(response, part.size()))) {
    SFT_RETURN_IF_ERROR(part.Restart());
    if (response.status != 200) return Unavailable("the answer begins at another byte");
  }
  std::string buffer(kChunk, '\0');
  while (true) {
    if (watch.stop && watch.stop()) return Aborted(fmt::format("{}: stopped", file.path));
    SFT_ASSIGN_OR_RETURN(const size_t count, response.body->Read(buffer.data(), buffer.size()));
    if (count == 0) return absl::OkStatus();
    if (part.size() + static_cast<int64_t>(count) > file.size) {
      SFT_RETURN_IF_ERROR(part.Restart());
      return Unavailable(fmt::format("more than its {} bytes came", file.size));
    }
    SFT_RETURN_IF_ERROR(part.Append({buffer.data(), count}));
  }
}

absl::Status Pause(int tries, const hub::StopCheck& stop, Clock& clock) {
  Nanos left = std::min<Nanos>(milliseconds(250) * (1 << tries), kLongestPause);
  for (; left > Nanos(0); left -= kLockInterval) {
    if (stop && stop()) return Aborted("stopped");
    clock.Sleep(std::min<Nanos>(left, kLockInterval));
  }
  return absl::OkStatus();
}

// Takes from another node what it has of the file. False: the hub is to be asked from here on.
absl::StatusOr<bool> CompleteFromPeer(const BlobSource& source, const hub::HubFile& file,
                                      Part& part, const BlobWatch& watch) {
  absl::StatusOr<PeerFile> opened =
      source.peers->Open(source.id, source.commit, file.path, part.size(), watch.stop);
  if (!opened.ok()) return false;
  const int64_t before = part.size();
  hub::HttpResponse response;
  response.status = 206;
  response.headers = {{"content-range", fmt::format("bytes {}-", before)}};
  response.body = std::move(opened->body);
  const absl::Status received = Receive(response, file, part, watch);
  if (watch.on_node_bytes && part.size() > before) {
    watch.on_node_bytes(opened->node, part.size() - before);
  }
  if (absl::IsAborted(received) || absl::IsResourceExhausted(received)) return received;
  // One that broke off may be asked again, or another one is.
  return part.size() > before;
}

// Receives until the file has its size.
absl::Status Complete(const BlobSource& source, const hub::HubFile& file, Part& part,
                      const BlobWatch& watch, bool from_peers, Clock& clock) {
  while (from_peers && part.size() < file.size) {
    SFT_ASSIGN_OR_RETURN(from_peers, CompleteFromPeer(source, file, part, watch));
  }
  int64_t best = part.size();
  for (int idle = 0; part.size() < file.size;) {
    // The hub has been asked for as long as there is patience.
    SFT_ASSIGN_OR_RETURN(
        const hub::HttpResponse response,
        source.hub.Open(source.id, source.commit, file.path, part.size(), watch.stop));
    const absl::Status received = Receive(response, file, part, watch);
    if (!received.ok() && !absl::IsUnavailable(received)) return received;
    idle = part.size() > best ? 0 : idle + 1;
    best = std::max(best, part.size());
    if (part.size() == file.size) return absl::OkStatus();
    const std::string what =
        fmt::format("{} of {}: {} of {} bytes came", file.path, source.id, part.size(), file.size);
    if (idle >= kMaxIdleTries) {
      return Unavailable(received.ok() ? what : fmt::format("{}: {}", what, Message(received)));
    }
    SFT_RETURN_IF_ERROR(Pause(idle, watch.stop, clock));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DownloadBlob(const BlobSource& source, const hub::HubFile& file, const HubCache& cache,
                          const BlobWatch& watch, Clock& clock) {
  const std::string path = cache.BlobPath(file.etag());
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<int64_t> size = io::FileSize(path);
    if (!size.ok() || *size != file.size) return false;
    SFT_ASSIGN_OR_RETURN(const bool right, HasItsBytes(path, file, watch));
    if (right) watch.on_bytes(file.size);
    return right;
  };
  SFT_ASSIGN_OR_RETURN(const bool there, is_there());
  if (there) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const BlobLock lock,
                       BlobLock::Take(cache.LockPath(file.etag()), watch.stop, clock));
  SFT_ASSIGN_OR_RETURN(const bool came, is_there());
  if (came) return absl::OkStatus();
  // A blob of another size was not written by us, or was cut off since; or it was damaged.
  SFT_RETURN_IF_ERROR(RemoveFile(path));
  Part part(cache.PartPath(file.etag()), file, watch);
  SFT_RETURN_IF_ERROR(part.Open());
  for (int wrong = 0;; ++wrong) {
    const bool from_peers = source.peers != nullptr && wrong == 0;
    const absl::Status complete = Complete(source, file, part, watch, from_peers, clock);
    // Nothing came that a later try could go on with.
    if (!complete.ok() && part.size() == 0) {
      SFT_RETURN_IF_ERROR(RemoveFile(cache.PartPath(file.etag())));
    }
    SFT_RETURN_IF_ERROR(complete);
    SFT_ASSIGN_OR_RETURN(const bool right, part.IsRight());
    if (right) return part.Keep(path);
    SFT_RETURN_IF_ERROR(part.Restart());
    if (wrong + 1 == kMaxWrong) {
      SFT_RETURN_IF_ERROR(RemoveFile(cache.PartPath(file.etag())));
      return DataLoss(fmt::format(
          "{} of {} came {} times with bytes whose hash is not {}: the hub, what stands between "
          "it and this node, or this node's memory or disk spoils them",
          file.path, source.id, kMaxWrong, file.etag().substr(0, 12)));
    }
  }
}

}  // namespace sft::worker
