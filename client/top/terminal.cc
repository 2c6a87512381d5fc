#include "client/top/terminal.h"

#include <curses.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <termios.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstring>
#include <cwchar>

#include "common/base/env.h"
#include "common/base/utf8.h"

namespace sft::client::top {
namespace {

// Colours by pair; -1 is the terminal's own.
enum Pair : short { kGreen = 1, kYellow, kRed, kCyan };

bool coloured = false;

// What brings a terminal back when the process dies of a fault; both are set before.
termios terminal_before;
constexpr char kRestore[] = "\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1l\x1b>\r\n";
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Calls only what a signal handler may.
extern "C" void OnFault(int signal) {
  (void)!write(STDOUT_FILENO, kRestore, sizeof(kRestore) - 1);
  tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  // Its action is the system's again (SA_RESETHAND).
  raise(signal);
}

void CatchFaults(bool on) {
  for (const int fault : kFaults) {
    struct sigaction action {};
    action.sa_handler = on ? OnFault : SIG_DFL;
    action.sa_flags = on ? static_cast<int>(SA_RESETHAND | SA_NODEFER) : 0;
    sigaction(fault, &action, nullptr);
  }
}

attr_t AttributesOf(Style style) {
  const auto pair = [](Pair number, attr_t without) -> attr_t {
    return coloured ? static_cast<attr_t>(COLOR_PAIR(number)) : without;
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kDim:
      return A_DIM;
    case Style::kBold:
      return A_BOLD;
    case Style::kGood:
      return pair(kGreen, A_NORMAL);
    case Style::kWarn:
      return pair(kYellow, A_BOLD);
    case Style::kBad:
      return pair(kRed, A_BOLD) | A_BOLD;
    case Style::kCurve:
      return pair(kCyan, A_NORMAL);
    case Style::kSelected:
    case Style::kBar:
      return A_REVERSE;
  }
  return A_NORMAL;
}

// Characters as ncurses takes them whole: given bytes it would keep the beginning of one.
std::wstring WideOf(std::string_view text) {
  std::wstring wide;
  while (!text.empty()) {
    bool valid = false;
    wide += static_cast<wchar_t>(TakeCharacter(text, valid));
  }
  return wide;
}

int KeyOf(wint_t key) {
  switch (key) {
    case KEY_UP:
      return keys::kUp;
    case KEY_DOWN:
      return keys::kDown;
    case KEY_LEFT:
      return keys::kLeft;
    case KEY_RIGHT:
      return keys::kRight;
    case KEY_PPAGE:
      return keys::kPageUp;
    case KEY_NPAGE:
      return keys::kPageDown;
    case KEY_HOME:
      return keys::kHome;
    case KEY_END:
      return keys::kEnd;
    case KEY_ENTER:
      return keys::kEnter;
    case KEY_BACKSPACE:
      return keys::kBackspace;
    default:
      return 0;
  }
}

}  // namespace

bool LocaleHasUnicode() {
  return std::setlocale(LC_CTYPE, "") != nullptr && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

absl::StatusOr<std::unique_ptr<Terminal>> Terminal::Open(bool colours) {
  std::unique_ptr<Terminal> terminal(new Terminal());
  if (tcgetattr(STDIN_FILENO, &terminal_before) != 0) {
    return FailedPrecondition("standard input is no terminal: use --once");
  }
  // Unlike initscr, it does not end the process.
  if (newterm(nullptr, stdout, stdin) == nullptr) {
    return FailedPrecondition(
        fmt::format("the terminal type \"{}\" (TERM) is not known on this machine: set TERM to one "
                    "that is, such as xterm, or use --once",
                    GetEnv("TERM").value_or("")));
  }
  CatchFaults(true);
  cbreak();
  noecho();
  nonl();
  keypad(stdscr, TRUE);
  set_escdelay(25);
  curs_set(0);
  coloured = colours && has_colors();
  if (coloured) {
    start_color();
    use_default_colors();
    init_pair(kGreen, COLOR_GREEN, -1);
    init_pair(kYellow, COLOR_YELLOW, -1);
    init_pair(kRed, COLOR_RED, -1);
    init_pair(kCyan, COLOR_CYAN, -1);
  }
  // What libraries say there would stand in the middle of the screen.
  terminal->errors_ = dup(STDERR_FILENO);
  if (const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0) {
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
  }
  return terminal;
}

Terminal::~Terminal() {
  if (errors_ < 0) return;
  endwin();
  CatchFaults(false);
  dup2(errors_, STDERR_FILENO);
  close(errors_);
}

Screen Terminal::size() const {
  static const bool unicode = LocaleHasUnicode();
  return {.width = std::max(1, getmaxx(stdscr)),
          .height = std::max(1, getmaxy(stdscr)),
          .unicode = unicode};
}

void Terminal::Show(const std::vector<Row>& rows) {
  const bool unicode = size().unicode;
  erase();
  for (size_t i = 0; i < rows.size(); ++i) {
    move(static_cast<int>(i), 0);
    for (const Span& span : rows[i]) {
      attrset(static_cast<int>(AttributesOf(span.style)));
      addwstr(WideOf(unicode ? span.text : ToAscii(span.text)).c_str());
    }
  }
  attrset(A_NORMAL);
  refresh();
}

int Terminal::ReadKey(std::chrono::milliseconds patience) {
  timeout(static_cast<int>(patience.count()));
  wint_t key = 0;
  const int kind = get_wch(&key);
  if (kind == KEY_CODE_YES) return KeyOf(key);
  if (kind != OK) return 0;
  switch (key) {
    case '\r':
    case '\n':
      return keys::kEnter;
    case 0x1b:
      return keys::kEscape;
    case 0x7f:
    case '\b':
      return keys::kBackspace;
    case 'L' - '@':  // drawn anew, where something else has written there
      clearok(curscr, TRUE);
      return 0;
    default:
      return static_cast<int>(key);
  }
}

}  // namespace sft::client::top
