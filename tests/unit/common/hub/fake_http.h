#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/hub/http.h"

namespace sft::hub {

// A body that is in memory, and breaks after `breaks_at` bytes.
class FakeBody : public HttpBody {
 public:
  explicit FakeBody(std::string text, size_t breaks_at = std::string::npos)
      : text_(std::move(text)), breaks_at_(breaks_at) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    if (at_ >= breaks_at_) return Unavailable("the connection broke");
    size = std::min({size, text_.size() - at_, breaks_at_ - at_});
    text_.copy(data, size, at_);
    at_ += size;
    return size;
  }

 private:
  const std::string text_;
  const size_t breaks_at_;
  size_t at_ = 0;
};

// Answers requests by a function, one at a time, and keeps them.
class FakeHttp : public HttpClient {
 public:
  using Answer = std::function<absl::StatusOr<HttpResponse>(const HttpRequest&)>;
  explicit FakeHttp(Answer answer = {}) : answer(std::move(answer)) {}
  absl::StatusOr<HttpResponse> Send(const HttpRequest& request) override {
    const MutexLock lock(mutex_);
    requests.push_back(request);
    return answer(request);
  }
  static HttpResponse Make(int status, std::string body = "",
                           std::vector<std::pair<std::string, std::string>> headers = {}) {
    HttpResponse response;
    response.status = status;
    response.headers = std::move(headers);
    response.body = std::make_unique<FakeBody>(std::move(body));
    return response;
  }

  Answer answer;
  std::vector<HttpRequest> requests;

 private:
  Mutex mutex_;
};

// The value of a request's header; empty: it has none.
inline std::string HeaderOf(const HttpRequest& request, const std::string& name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  return "";
}

}  // namespace sft::hub
