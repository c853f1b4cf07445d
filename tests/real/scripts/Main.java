// SPDX-License-Identifier: GPL-2.0
// Program for the script jdk: collections, strings, threads, exceptions and garbage, with one
// result.

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public class Main {
    interface Shape {
        double area();
    }

    record Circle(double r) implements Shape {
        public double area() {
            return Math.PI * r * r;
        }
    }

    record Box(double a, double b) implements Shape {
        public double area() {
            return a * b;
        }
    }

    static class Refused extends Exception {
        final int number;

        Refused(int number) {
            this.number = number;
        }
    }

    static int refuse(int n) throws Refused {
        if (n % 3 == 0) throw new Refused(n);
        return n;
    }

    static long collections(int seed) {
        Map<String, List<Integer>> groups = new HashMap<>();
        TreeMap<Integer, String> tree = new TreeMap<>();
        for (int i = 0; i < 12000; i++) {
            int x = (int) ((i * 2654435761L + seed) % 10007);
            groups.computeIfAbsent("group-" + x % 97, key -> new ArrayList<>()).add(x);
            tree.put(x, "value-" + i);
            if (i % 5 == 0) tree.pollFirstEntry();
        }
        long sum = 0;
        for (Map.Entry<Integer, String> entry : tree.entrySet()) sum = sum * 31 + entry.getKey() + entry.getValue().hashCode();
        for (int i = 0; i < 97; i++) {
            for (int x : groups.getOrDefault("group-" + i, List.of())) sum = sum * 17 + x;
        }
        return sum;
    }

    static long shapes(int seed) {
        Shape[] shapes = new Shape[5000];
        for (int i = 0; i < shapes.length; i++) {
            shapes[i] = (i + seed) % 3 == 0 ? new Circle(i % 100) : new Box(i % 13, i % 17);
        }
        double sum = 0;
        for (int round = 0; round < 40; round++) {
            for (Shape shape : shapes) sum += shape.area();
        }
        return Double.doubleToLongBits(sum);
    }

    static long compress(int seed) throws Exception {
        byte[] data = new byte[60000];
        for (int i = 0; i < data.length; i++) data[i] = (byte) (i * i / (seed + 7) >> 3);
        Deflater deflater = new Deflater();
        deflater.setInput(data);
        deflater.finish();
        byte[] packed = new byte[data.length * 2];
        int n = deflater.deflate(packed);
        deflater.end();
        Inflater inflater = new Inflater();
        inflater.setInput(packed, 0, n);
        byte[] again = new byte[data.length];
        inflater.inflate(again);
        inflater.end();
        if (!Arrays.equals(data, again)) throw new IllegalStateException("decompressed data differ");
        CRC32 crc = new CRC32();
        crc.update(packed, 0, n);
        return crc.getValue();
    }

    static long exceptions(int seed) {
        long sum = 0;
        for (int i = 0; i < 20000; i++) {
            try {
                sum += refuse(i + seed);
            } catch (Refused refused) {
                sum ^= refused.number * 7L;
            }
        }
        return sum;
    }

    static long strings(int seed) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 8000; i++) text.append((i * 31 + seed) % 1009).append(i % 2 == 0 ? ',' : ';');
        long sum = 0;
        for (String part : text.toString().split("[,;]")) sum = sum * 131 + Integer.parseInt(part) + part.intern().hashCode();
        return sum;
    }

    static long one(int seed) {
        try {
            long sum = collections(seed);
            sum = sum * 31 + shapes(seed);
            sum = sum * 31 + compress(seed);
            sum = sum * 31 + exceptions(seed);
            sum = sum * 31 + strings(seed);
            BigInteger big = BigInteger.valueOf(3).pow(700 + seed).mod(BigInteger.valueOf(2).pow(521).subtract(BigInteger.ONE));
            sum = sum * 31 + big.hashCode();
            return sum * 31 + IntStream.range(0, 20000).map(i -> i ^ seed).filter(i -> i % 5 != 1).asLongStream().sum();
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int tasks = 24;
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<Long>> results = new ArrayList<>();
        for (int i = 0; i < tasks; i++) {
            // Each pair of tasks does the same.
            int seed = i / 2;
            results.add(pool.submit(() -> one(seed)));
        }
        for (int i = 0; i < tasks; i += 2) {
            long first = results.get(i).get(), second = results.get(i + 1).get();
            if (first != second) throw new IllegalStateException("task " + i + ": " + first + " and " + second);
            System.out.println(i / 2 + " " + first);
        }
        pool.shutdown();
    }
}
