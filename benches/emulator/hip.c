// A HIP runtime and its compiler, without a GPU: the functions that Quantloom looks up.
//
// Memory of the device is memory that emulate.py shares, at the same addresses in both processes; copies are done
// here, compilations and launches are handed over a socket and waited for. So every stream is one queue that is
// always empty, and an event has nothing to say.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, BAD_IMAGE = 200, NOT_FOUND = 500, LAUNCH = 719 };

static char *base, architecture[32];
static size_t bytes, used;
static long live;
static int socket_fd = -1;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static int whole(int writing, void *at, size_t n) {
    for (char *p = at; n;) {
        ssize_t done = writing ? write(socket_fd, p, n) : read(socket_fd, p, n);
        if (done <= 0) return 0;
        p += done, n -= done;
    }
    return 1;
}

// A request and its answer: the status, and bytes that the caller frees.
static int ask(char kind, const void *head, uint64_t head_bytes, const void *body, uint64_t body_bytes,
               char **answer, uint64_t *answer_bytes) {
    uint64_t to[2] = {kind, head_bytes + body_bytes}, from[2] = {LAUNCH, 0};
    char *got = NULL;
    pthread_mutex_lock(&one_at_a_time);
    int ok = whole(1, to, sizeof to) && whole(1, (void *)head, head_bytes) && whole(1, (void *)body, body_bytes)
        && whole(0, from, sizeof from) && (got = calloc(1, from[1] + 1)) && whole(0, got, from[1]);
    pthread_mutex_unlock(&one_at_a_time);
    if (!ok) from[0] = LAUNCH;
    if (answer) *answer = got, *answer_bytes = from[1]; else free(got);
    return (int)from[0];
}

// The runtime.
int hipInit(unsigned flags) {
    const char *where = getenv("QUANTLOOM_EMULATOR");
    int memory_fd;
    unsigned long long at, size;
    if (base) return 0;
    if (!where || sscanf(where, "%d %d %llx %llx %31s", &socket_fd, &memory_fd, &at, &size, architecture) != 5) return NO_DEVICE;
    char *mapped = mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, memory_fd, 0);
    if (mapped != (void *)at) return NO_DEVICE;
    base = mapped, bytes = size;
    return 0;
}
int hipRuntimeGetVersion(int *to) { *to = 60000000; return 0; }
static const char *name_of(int error) {
    return error == LAUNCH ? "the emulator failed" : error == OUT_OF_MEMORY ? "out of memory" : error == NO_DEVICE
        ? "no emulator: start the program by emulate.py" : "an error of the stand-in for HIP";
}
int hipDrvGetErrorName(int error, const char **to) { *to = name_of(error); return 0; }
int hipDrvGetErrorString(int error, const char **to) { *to = name_of(error); return 0; }
int hipGetDeviceCount(int *to) { *to = 1; return 0; }
int hipDeviceGet(int *to, int ordinal) { *to = ordinal; return ordinal ? 101 : 0; }
int hipGetDevice(int *to) { *to = 0; return 0; }
int hipSetDevice(int device) { return device ? 101 : 0; }
int hipDeviceGetName(char *to, int length, int device) { snprintf(to, length, "emulated GPU"); return 0; }
int hipDeviceTotalMem(size_t *to, int device) { *to = bytes; return 0; }
int hipDeviceGetAttribute(int *to, int attribute, int device) {
    int multiprocessors = 63, l2 = 19;
    *to = attribute == multiprocessors ? 4 : attribute == l2 ? 4 << 20 : 64 << 10;
    return 0;
}
int hipGetDevicePropertiesR0600(void *to, int device) { strcpy(to, "emulated GPU"); strcpy((char *)to + 1160, architecture); return 0; }
int hipDeviceSynchronize(void) { return 0; }

int hipStreamCreateWithFlags(void **to, unsigned flags) { *to = malloc(1); return 0; }
int hipStreamDestroy(void *stream) { free(stream); return 0; }
int hipStreamSynchronize(void *stream) { return 0; }
int hipStreamIsCapturing(void *stream, int *to) { *to = 0; return 0; }
int hipStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int hipEventCreateWithFlags(void **to, unsigned flags) { *to = malloc(1); return 0; }
int hipEventRecord(void *event, void *stream) { return 0; }
int hipEventSynchronize(void *event) { return 0; }
int hipEventElapsedTime(float *to, void *start, void *end) { *to = 1; return 0; }
int hipEventDestroy(void *event) { free(event); return 0; }

// Memory is handed out once, and starts again when all is free. It holds no zeros, as a device's may not.
int hipMalloc(void **to, size_t size) {
    size = (size + 511) & ~(size_t)255;
    pthread_mutex_lock(&one_at_a_time);
    int fits = size <= bytes - used;
    if (fits) *to = base + used, used += size, live++;
    pthread_mutex_unlock(&one_at_a_time);
    if (fits) memset(*to, 0xa5, size);
    return fits ? 0 : OUT_OF_MEMORY;
}
int hipFree(void *at) {
    pthread_mutex_lock(&one_at_a_time);
    if (at && --live == 0) used = 0;
    pthread_mutex_unlock(&one_at_a_time);
    return 0;
}
int hipMemcpyHtoDAsync(void *to, const void *from, size_t size, void *stream) { memcpy(to, from, size); return 0; }
int hipMemcpyDtoHAsync(void *to, const void *from, size_t size, void *stream) { memcpy(to, from, size); return 0; }
int hipMemcpyDtoDAsync(void *to, const void *from, size_t size, void *stream) { memmove(to, from, size); return 0; }
int hipMemsetD8Async(void *to, unsigned char byte, size_t size, void *stream) { memset(to, byte, size); return 0; }
int hipMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t rows, int kind, void *stream) {
    while (rows--) memmove(to, from, width), to += to_pitch, from += from_pitch;
    return 0;
}

// Kernels. What a function is launched with stands in the answer to its name.
struct function { uint32_t id, facts[4], arguments, places[][2]; };

int hipModuleLoadData(void **to, const void *image) {
    const unsigned char *elf = image;
    if (memcmp(elf, "\177ELF", 4)) return BAD_IMAGE;
    uint64_t sections = *(uint64_t *)(elf + 40), size = sections + 64ull * *(uint16_t *)(elf + 60);
    char *answer;
    int result = ask('L', elf, size, NULL, 0, &answer, &size);
    if (result == 0) *to = (void *)(uintptr_t)*(uint32_t *)answer;
    free(answer);
    return result;
}
int hipModuleUnload(void *module) { return 0; }
int hipModuleGetFunction(void **to, void *module, const char *name) {
    uint32_t id = (uintptr_t)module;
    char *answer;
    uint64_t size;
    int result = ask('F', &id, 4, name, strlen(name), &answer, &size);
    *to = result ? NULL : answer;
    return result;
}
int hipFuncGetAttribute(int *to, int attribute, const struct function *function) {
    static const int at[5] = {0, 1, -1, 2, 3};  // threads, shared bytes, none, local bytes, registers
    if (attribute < 0 || attribute > 4 || at[attribute] < 0) return INVALID;
    *to = function->facts[at[attribute]];
    return 0;
}
int hipModuleLaunchKernel(const struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **values, void **extra) {
    uint32_t head[8] = {function->id, gx, gy, gz, bx, by, bz, shared};
    uint64_t size = 0;
    for (uint32_t i = 0; i < function->arguments; i++)
        if (function->places[i][0] + function->places[i][1] > size) size = function->places[i][0] + function->places[i][1];
    char *body = calloc(1, size + 1);
    for (uint32_t i = 0; i < function->arguments; i++) memcpy(body + function->places[i][0], values[i], function->places[i][1]);
    int result = ask('X', head, sizeof head, body, size, NULL, NULL);
    free(body);
    return result;
}

// The compiler: the text of a program, then its code, or what was wrong.
struct program { char *text, *answer; uint64_t size; int result; };

int hiprtcVersion(int *major, int *minor) { *major = 6, *minor = 0; return 0; }
const char *hiprtcGetErrorString(int error) { return error == 6 ? "compilation failed" : name_of(error); }
int hiprtcCreateProgram(struct program **to, const char *text, const char *name, int headers, const char **sources, const char **names) {
    *to = calloc(1, sizeof **to);
    (*to)->text = strdup(text);
    return 0;
}
int hiprtcCompileProgram(struct program *p, int count, const char **options) {
    return p->result = ask('C', p->text, strlen(p->text), NULL, 0, &p->answer, &p->size);
}
int hiprtcGetProgramLogSize(struct program *p, size_t *to) { *to = (p->result ? p->size : 0) + 1; return 0; }
int hiprtcGetProgramLog(struct program *p, char *to) { memcpy(to, p->result ? p->answer : "", (p->result ? p->size : 0) + 1); return 0; }
int hiprtcGetCodeSize(struct program *p, size_t *to) { *to = p->result ? 0 : p->size; return 0; }
int hiprtcGetCode(struct program *p, char *to) { memcpy(to, p->answer, p->result ? 0 : p->size); return 0; }
int hiprtcDestroyProgram(struct program **p) { free((*p)->text); free((*p)->answer); free(*p); *p = NULL; return 0; }
