#include "client/base/company_login.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>

#include "client/base/browser.h"
#include "client/base/code_listener.h"
#include "client/base/interrupt.h"
#include "common/base/ids.h"
#include "common/base/plain_text.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "sft/v1/auth_service.grpc.pb.h"

namespace sft::client {
namespace {

using Auth = v1::AuthService::Stub;

constexpr int kSecretLength = 52;  // characters of 5 bits each
constexpr int64_t kMostTokenBytes = 64 << 10;
constexpr std::chrono::milliseconds kSleepStep{200};

std::string ChallengeOf(const std::string& verifier) {
  io::Sha256 hash;
  hash.Update(verifier);
  const io::Sha256::Digest digest = hash.Finish();
  return absl::WebSafeBase64Escape({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

// False: Ctrl-C.
bool Sleep(Connection& server, std::chrono::seconds time) {
  const MonoTime until = server.clock().Mono() + time;
  while (!Interrupt::Raised() && server.clock().Mono() < until) server.clock().Sleep(kSleepStep);
  return !Interrupt::Raised();
}

std::string ThisMachine() {
  char name[256] = "this machine";
  (void)::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

absl::StatusOr<std::string> TokenByBrowser(Connection& server) {
  SFT_ASSIGN_OR_RETURN(const CodeListener listener, CodeListener::Open());
  const std::string verifier = RandomId("", kSecretLength);
  v1::StartLoginRequest start;
  start.set_redirect_uri(listener.redirect_uri());
  start.set_state(RandomId("", kSecretLength));
  start.set_nonce(RandomId("", kSecretLength));
  start.set_code_challenge(ChallengeOf(verifier));
  SFT_ASSIGN_OR_RETURN(const v1::StartLoginResponse started, server.Call(&Auth::StartLogin, start));
  Console& console = server.console();
  console.err << "log in with a browser of this machine (`--device` is for others):\n  "
              << Plain(started.authorization_url(), kMostTokenBytes) << "\n"
              << std::flush;
  if (HasDesktop(console)) (void)OpenBrowser(started.authorization_url());
  v1::FinishLoginRequest finish;
  SFT_ASSIGN_OR_RETURN(*finish.mutable_code(), listener.Wait(start.state(), server.clock()));
  finish.set_redirect_uri(start.redirect_uri());
  finish.set_nonce(start.nonce());
  finish.set_code_verifier(verifier);
  SFT_ASSIGN_OR_RETURN(const v1::FinishLoginResponse finished,
                       server.Call(&Auth::FinishLogin, finish));
  return finished.login().secret();
}

absl::StatusOr<std::string> TokenByDevice(Connection& server) {
  v1::StartLoginRequest start;
  start.set_device(true);
  SFT_ASSIGN_OR_RETURN(const v1::StartLoginResponse started, server.Call(&Auth::StartLogin, start));
  // The address without the code in it: who is sent a link by somebody else logs that one in.
  server.console().err
      << fmt::format(
             "open {} on any machine and type the code\n\n  {}\n\nIt logs in {} at "
             "{}, from where you have begun this; give the code to nobody, and "
             "type none that somebody gives you.\n",
             Plain(started.verification_uri(), 500), Plain(started.user_code(), 100), ThisMachine(),
             server.server())
      << std::flush;
  std::chrono::seconds interval(std::max(1, started.interval_seconds()));
  const MonoTime end = server.clock().Mono() + std::chrono::seconds(started.expires_in_seconds());
  v1::FinishLoginRequest finish;
  finish.set_device_code(started.device_code());
  while (Sleep(server, interval)) {
    SFT_ASSIGN_OR_RETURN(const v1::FinishLoginResponse finished,
                         server.Call(&Auth::FinishLogin, finish));
    if (!finished.pending()) return finished.login().secret();
    interval += std::chrono::seconds(finished.slow_down_seconds());
    if (server.clock().Mono() >= end) {
      return DeadlineExceeded("nobody has typed the code in time: begin anew");
    }
  }
  return absl::CancelledError("interrupted before anybody has typed the code");
}

absl::StatusOr<std::string> TokenByExchange(Connection& server, const std::string& file) {
  std::string text;
  if (file == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    absl::StatusOr<std::string> read = io::ReadFile(file, kMostTokenBytes);
    if (!read.ok()) return InvalidArgument(Message(read.status()));
    text = *std::move(read);
  }
  text.resize(text.find_last_not_of(" \r\n\t") + 1);
  if (text.empty() || static_cast<int64_t>(text.size()) > kMostTokenBytes) {
    return InvalidArgument("there is no ID token: it is one line, which the CI gives the job");
  }
  v1::ExchangeTokenRequest request;
  request.set_subject_token(text);
  SFT_ASSIGN_OR_RETURN(const v1::CreateTokenResponse made,
                       server.Call(&Auth::ExchangeToken, request));
  return made.secret();
}

}  // namespace sft::client
