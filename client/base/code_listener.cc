#include "client/base/code_listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/base/interrupt.h"
#include "common/base/plain_text.h"

namespace sft::client {
namespace {

constexpr char kPath[] = "/callback";
constexpr size_t kMostHeadBytes = 16 << 10;
constexpr std::chrono::milliseconds kAcceptWait{200};
// A browser may open connections beside the one that it uses.
constexpr std::chrono::seconds kSilence{2};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string Unescaped(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return "";
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return "";
    bytes += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return bytes;
}

bool IsReadable(int fd, std::chrono::milliseconds patience) {
  pollfd waited{fd, POLLIN, 0};
  return ::poll(&waited, 1, static_cast<int>(patience.count())) == 1;
}

// The head of a request, or what has come of it.
std::string ReadHead(int fd) {
  std::string head;
  char bytes[2048];
  while (head.size() < kMostHeadBytes && head.find("\r\n\r\n") == head.npos &&
         IsReadable(fd, kSilence)) {
    const ssize_t got = ::recv(fd, bytes, sizeof(bytes), 0);
    if (got <= 0) break;
    head.append(bytes, static_cast<size_t>(got));
  }
  return head;
}

// It does not wait: the text is shorter than what a socket takes.
void AnswerWith(int fd, const char* status, const std::string& text) {
  const std::string answer = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n"
      "Cache-Control: no-store\r\nConnection: close\r\n\r\n{}",
      status, text.size(), text);
  (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::string QueryValue(const std::string& line, const std::string& name) {
  const size_t begin = line.find('?'), end = line.find(' ', std::min(begin, line.size()));
  if (begin == line.npos || end == line.npos) return "";
  std::string query = "&" + line.substr(begin + 1, end - begin - 1);
  const std::string wanted = "&" + name + "=";
  const size_t at = query.find(wanted);
  if (at == query.npos) return "";
  query = query.substr(at + wanted.size());
  return Unescaped(query.substr(0, query.find('&')));
}

absl::StatusOr<CodeListener> CodeListener::Open() {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!fd.valid() || ::bind(fd.get(), any, size) != 0 || ::listen(fd.get(), 8) != 0 ||
      ::getsockname(fd.get(), any, &size) != 0) {
    return ErrnoStatus(
        "no port of 127.0.0.1 for the browser to come back to (`--device` needs none)", errno);
  }
  return CodeListener(std::move(fd), ntohs(address.sin_port));
}

std::string CodeListener::redirect_uri() const {
  return fmt::format("http://127.0.0.1:{}{}", port_, kPath);
}

absl::StatusOr<std::string> CodeListener::Wait(const std::string& state, Clock& clock) const {
  const MonoTime deadline = clock.Mono() + kPatience;
  while (!Interrupt::Raised()) {
    if (clock.Mono() >= deadline) {
      return DeadlineExceeded("nobody has logged in within ten minutes: begin anew");
    }
    if (!IsReadable(socket_.get(), kAcceptWait)) continue;
    const io::UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) continue;
    const std::string head = ReadHead(fd.get());
    const std::string line = head.substr(0, head.find("\r\n"));
    if (!line.starts_with(fmt::format("GET {}?", kPath))) {
      AnswerWith(fd.get(), "404 Not Found", "there is nothing here\n");
      continue;
    }
    if (QueryValue(line, "state") != state) {
      AnswerWith(fd.get(), "400 Bad Request", "this is of another login: begin anew\n");
      continue;
    }
    const std::string code = QueryValue(line, "code");
    if (!code.empty()) {
      AnswerWith(fd.get(), "200 OK", "You may close this page and go back to the terminal.\n");
      return code;
    }
    const std::string error = Plain(QueryValue(line, "error"), 200);
    AnswerWith(fd.get(), "200 OK", "The login did not succeed; the terminal says more.\n");
    return PermissionDenied("the provider says: " + (error.empty() ? "nothing" : error));
  }
  return absl::CancelledError("interrupted before anybody has logged in");
}

}  // namespace sft::client
