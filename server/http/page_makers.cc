#include "server/http/page_makers.h"

#include <algorithm>

#include "common/obs/log.h"

namespace sft::server {

PageMakers::PageMakers(std::vector<HttpPage> pages, Nanos patience) : patience_(patience) {
  for (HttpPage& page : pages) {
    makers_.push_back(std::make_unique<Maker>());
    makers_.back()->page = std::move(page);
  }
  for (const auto& maker : makers_) {
    maker->thread = std::thread([this, &maker = *maker] { Make(maker); });
  }
}

PageMakers::~PageMakers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& maker : makers_) maker->asked.NotifyAll();
  }
  for (const auto& maker : makers_) maker->thread.join();
}

bool PageMakers::Has(const std::string& path) const {
  return std::ranges::any_of(makers_, [&](const auto& maker) { return maker->page.path == path; });
}

void PageMakers::Answer(std::shared_ptr<HttpStream> stream) {
  stream->WhenMoved([stream = std::weak_ptr(stream), at = Clock::Real().Mono() + patience_] {
    const std::shared_ptr<HttpStream> late = stream.lock();
    if (late == nullptr || Clock::Real().Mono() < at) return;
    late->Respond({503,
                   HttpResponse().content_type,
                   "the page is not ready: the server's database is busy or hangs\n",
                   {}});
  });
  stream->SetAlarm(Clock::Real().Mono() + patience_);
  const MutexLock lock(mutex_);
  for (const auto& maker : makers_) {
    if (maker->page.path != stream->request().path) continue;
    maker->waiting.push_back(std::move(stream));
    maker->asked.NotifyOne();
    return;
  }
}

void PageMakers::Make(Maker& maker) {
  obs::NameThread("http page");
  std::vector<std::shared_ptr<HttpStream>> waiting;
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (maker.waiting.empty() && !stopping_) maker.asked.Wait(mutex_);
      if (stopping_) return;
      waiting.swap(maker.waiting);
    }
    const HttpResponse response = maker.page.make();
    for (const auto& stream : waiting) stream->Respond(response);
    waiting.clear();
  }
}

}  // namespace sft::server
