#pragma once

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "tests/unit/common/hub/fake_http.h"
#include "worker/hub/git_hash.h"

namespace sft::worker {

// One repository of a hub in memory, "org/name" at one commit, with the faults of downloads.
// Weights are LFS files. What is asked is in `http.requests`.
class FakeHub {
 public:
  FakeHub() {
    http.answer = [this](const hub::HttpRequest& request) { return Answer(request); };
  }

  static bool IsLfs(const std::string& path) { return path.ends_with(".safetensors"); }
  static std::string EtagOf(const std::string& path, const std::string& bytes) {
    return IsLfs(path) ? io::Sha256Hex(bytes) : GitBlobId(bytes);
  }
  // Requests for the bytes of a file, by their ranges ("": all of it).
  std::vector<std::string> Ranges(const std::string& path) const {
    std::vector<std::string> ranges;
    for (const hub::HttpRequest& request : http.requests) {
      if (request.url.ends_with("/" + path)) ranges.push_back(hub::HeaderOf(request, "Range"));
    }
    return ranges;
  }

  std::string commit = std::string(40, 'c');
  std::map<std::string, std::string> files;
  std::vector<size_t> breaks;  // where the next answers with bytes break, in turn
  bool no_range = false;
  bool wrong_range = false;  // answers 206 from byte 0
  int refuse_range = 0;      // 416
  int flips = 0;             // answers whose first byte is another
  hub::FakeHttp http;

 private:
  absl::StatusOr<hub::HttpResponse> Answer(const hub::HttpRequest& request) {
    if (request.url.find("/api/models/org/name/revision/") != std::string::npos) {
      return hub::FakeHttp::Make(200, fmt::format(R"({{"sha": "{}"}})", commit));
    }
    if (request.url.find("/api/models/org/name/tree/") != std::string::npos) {
      nlohmann::json list = nlohmann::json::array();
      for (const auto& [path, bytes] : files) {
        list.push_back(
            {{"type", "file"}, {"path", path}, {"size", bytes.size()}, {"oid", GitBlobId(bytes)}});
        if (IsLfs(path)) {
          list.back()["lfs"] = {{"oid", io::Sha256Hex(bytes)}, {"size", bytes.size()}};
        }
      }
      return hub::FakeHttp::Make(200, DumpJson(list));
    }
    const std::string path = request.url.substr(request.url.find(commit) + commit.size() + 1);
    const auto file = files.find(path);
    if (file == files.end()) {
      return hub::FakeHttp::Make(404, "", {{"x-error-code", "EntryNotFound"}});
    }
    return Bytes(file->second, hub::HeaderOf(request, "Range"));
  }
  hub::HttpResponse Bytes(std::string bytes, const std::string& range) {
    if (flips > 0 && !bytes.empty()) {
      --flips;
      bytes[0] = static_cast<char>(bytes[0] ^ 1);
    }
    hub::HttpResponse response = hub::FakeHttp::Make(200);
    if (!range.empty() && refuse_range > 0) {
      --refuse_range;
      return hub::FakeHttp::Make(416);
    }
    if (!range.empty() && !no_range) {
      const size_t from = wrong_range ? 0 : std::stoul(range.substr(6));
      response.status = 206;
      response.headers = {
          {"content-range", fmt::format("bytes {}-{}/{}", from, bytes.size() - 1, bytes.size())}};
      bytes = bytes.substr(from);
    }
    size_t broken = std::string::npos;
    if (!breaks.empty()) {
      broken = breaks.front();
      breaks.erase(breaks.begin());
    }
    response.body = std::make_unique<hub::FakeBody>(std::move(bytes), broken);
    return response;
  }
};

// A clock for several threads, whose sleeps take no time.
class PatientClock : public Clock {
 public:
  WallTime Wall() const override {
    const MutexLock lock(mutex_);
    return clock_.Wall();
  }
  MonoTime Mono() const override {
    const MutexLock lock(mutex_);
    return clock_.Mono();
  }
  void Sleep(Nanos duration) override {
    const MutexLock lock(mutex_);
    clock_.Advance(duration);
  }

 private:
  mutable Mutex mutex_;
  FakeClock clock_ SFT_GUARDED_BY(mutex_);
};

// A temporary folder that goes with the test.
class TempFolder {
 public:
  TempFolder() : path_(io::MakeTempDir("sft-hub-test").value()) {}
  ~TempFolder() { (void)io::RemoveAll(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace sft::worker
