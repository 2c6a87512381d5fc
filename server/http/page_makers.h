#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/http/http_stream.h"

namespace sft::server {

// A page for GET requests.
struct HttpPage {
  std::string path;
  std::function<HttpResponse()> make;  // may wait
};

// Makes pages, each in a thread of its own, once for all who wait for it, so that a slow one delays
// no other. Thread-safe.
class PageMakers {
 public:
  // A page that takes longer is answered with 503.
  static constexpr std::chrono::seconds kPatience{5};

  explicit PageMakers(std::vector<HttpPage> pages, Nanos patience = kPatience);
  // Returns when no page is being made.
  ~PageMakers();

  // Whether there is one of that path.
  bool Has(const std::string& path) const;
  // Answers with it.
  void Answer(std::shared_ptr<HttpStream> stream);

 private:
  // A request gets a version of the page that is begun after it.
  struct Maker {
    HttpPage page;
    std::vector<std::shared_ptr<HttpStream>> waiting;
    CondVar asked;
    std::thread thread;
  };
  void Make(Maker& maker) SFT_EXCLUDES(mutex_);

  const Nanos patience_;
  std::vector<std::unique_ptr<Maker>> makers_;
  Mutex mutex_;  // guards what makers hold
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
